// SIGTERM, SIGUSR1 and SIGINT ask a run to stop after the step it is in; a second one ends it at once.
#pragma once

namespace shardfit::train {

void install_stop_signals();
// The descriptor of metrics.jsonl that a second request, which ends the process at once, writes the last line to; -1 =
// none.
void end_at_once_tells(int descriptor);
bool stop_requested();

}  // namespace shardfit::train
