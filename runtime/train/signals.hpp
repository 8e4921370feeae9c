// SIGTERM, SIGUSR1 and SIGINT ask a run to stop after the step it is in; a second one ends it at once.
#pragma once

namespace shardfit::train {

void install_stop_signals();
bool stop_requested();

}  // namespace shardfit::train
