// Ranks as threads of one process, over the tiny golden models of tests/runtime/data (made by make_goldens.py).
#pragma once
#include <gtest/gtest.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "regions/base/files.hpp"
#include "runtime/comm/shm.hpp"
#include "runtime/comm/world.hpp"
#include "runtime/engine/engine.hpp"
#include "selector/job/job.hpp"
#include "selector/job/plan.hpp"
#include "selector/model/model.hpp"

namespace shardfit::engine::testing {

inline std::filesystem::path data_folder() { return std::filesystem::path(SHARDFIT_SOURCE_DIR) / "tests/runtime/data"; }

struct Row {
  std::vector<std::int32_t> ids, labels, positions, document_starts;
  std::int64_t length = 0;
};

inline Row make_row(std::vector<std::int32_t> ids, std::vector<std::int32_t> labels, std::int64_t sequence,
                    std::vector<std::int32_t> starts = {0}) {
  Row row;
  row.length = static_cast<std::int64_t>(ids.size());
  row.document_starts = std::move(starts);
  std::size_t document = 0;
  for (std::int64_t i = 0; i < row.length; ++i) {
    while (document + 1 < row.document_starts.size() && row.document_starts[document + 1] <= i) ++document;
    row.positions.push_back(static_cast<std::int32_t>(i) - row.document_starts[document]);
  }
  ids.resize(static_cast<std::size_t>(sequence), 0);
  labels.resize(static_cast<std::size_t>(sequence), -100);
  row.positions.resize(static_cast<std::size_t>(sequence), 0);
  row.ids = std::move(ids);
  row.labels = std::move(labels);
  return row;
}

inline std::vector<Row> golden_rows(std::int64_t sequence) {
  std::vector<Row> rows;
  const auto text = read_file(data_folder() / "batches.jsonl");
  for (std::size_t at = 0; at < text.size();) {
    const auto end = text.find('\n', at);
    const auto line = nlohmann::json::parse(text.substr(at, end - at));
    rows.push_back(make_row(line["input_ids"], line["labels"], sequence));
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return rows;
}

inline std::int64_t supervised(const Row& row) {
  std::int64_t n = 0;
  for (std::int64_t i = 1; i < row.length; ++i) n += row.labels[static_cast<std::size_t>(i)] >= 0;
  return n;
}

struct RunSetup {
  std::string model = "llama_tied";
  int ranks = 1, stage = 0;
  std::int64_t micro_batch = 4, accumulation = 1, sequence = 24;
  std::string precision = "fp32", checkpointing = "none", reshard = "true";
  std::int64_t prefetch = 0, loss_rows = 0;
};

inline schedule::Step make_schedule(const RunSetup& setup, const model::Model& model) {
  job::Job job;
  job.sequence_length = setup.sequence;
  job.precision.name = setup.precision;
  if (setup.loss_rows > 0) job.loss.chunk_tokens = setup.loss_rows;
  job::Plan plan;
  plan.gpu = "cpu";
  plan.gpus_per_node = setup.ranks;
  plan.sharding.stage = setup.stage;
  (setup.stage == 3 ? plan.sharding.shard_degree : plan.sharding.replicate_degree) = setup.ranks;
  using Reshard = job::Sharding::Reshard;
  plan.sharding.reshard_after_forward = setup.reshard == "always"  ? Reshard::kAlways
                                        : setup.reshard == "false" ? Reshard::kFalse
                                                                   : Reshard::kTrue;
  plan.micro_batch = setup.micro_batch;
  plan.gradient_accumulation = setup.accumulation;
  plan.checkpointing.kind = setup.checkpointing;
  plan.cpus_per_gpu = 1;
  if (setup.prefetch > 0) plan.schedule.prefetch_blocks = setup.prefetch;
  return schedule::build_step(model, job, plan);
}

// Runs `body` on every rank; the first exception of any rank is thrown again.
inline void on_ranks(int ranks, const std::function<void(comm::Collective&)>& body) {
  if (ranks == 1) {
    const auto collective = comm::make_single();
    body(*collective);
    return;
  }
  const auto listening = comm::listen_on_loopback();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        comm::World world(
            {rank, ranks, "127.0.0.1", listening.port, "same", 60, rank == 0 ? listening.descriptor : -1});
        const auto collective = comm::make_shm(world, schedule::kCommStageBytes);
        body(*collective);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (auto& error : errors)
    if (error) std::rethrow_exception(error);
}

inline MicroBatch micro_batch_of(const std::vector<Row>& rows, const std::vector<std::int64_t>& numbers) {
  MicroBatch batch;
  for (const auto number : numbers) {
    const auto& row = rows[static_cast<std::size_t>(number)];
    batch.rows.push_back({number, row.length, row.ids, row.labels, row.positions, row.document_starts});
  }
  return batch;
}

// Positions [first, first + count) of a global batch as formats-runtime.md deals them out: forward and backward on this
// rank. Returns the global mean loss.
inline double train_batch(Engine& engine, comm::Collective& collective, const RunSetup& setup,
                          const std::vector<Row>& rows, std::int64_t first, std::int64_t step) {
  const auto count = setup.micro_batch * setup.accumulation * setup.ranks;
  double total = 0;
  for (std::int64_t p = 0; p < count; ++p)
    total += static_cast<double>(supervised(rows[static_cast<std::size_t>(first + p)]));
  double loss = 0;
  for (std::int64_t micro = 0; micro < setup.accumulation; ++micro) {
    std::vector<std::int64_t> mine;
    for (std::int64_t p = 0; p < count; ++p)
      if (p / (setup.micro_batch * setup.ranks) == micro && p / setup.micro_batch % setup.ranks == collective.rank())
        mine.push_back(first + p);
    loss += engine.micro_step(micro_batch_of(rows, mine), step, micro, setup.accumulation, 1.0 / total);
  }
  return collective.sum(loss) / total;
}

}  // namespace shardfit::engine::testing
