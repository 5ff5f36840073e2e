/// Groups of ranks as threads, for both implementations.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <rrfp/tp_coord/channel_collective.hpp>
#include <rrfp/tp_coord/in_process_collective.hpp>

#include "../support/local_channel.hpp"

namespace rrfp::tp_coord::test {

enum class implementation { in_process, in_process_parallel, channel, channel_parts };

inline const char* name(implementation w) {
  switch (w) {
    case implementation::in_process: return "in process";
    case implementation::in_process_parallel: return "in process, all ranks reduce";
    case implementation::channel: return "channel";
    case implementation::channel_parts: return "channel, in parts";
  }
  return "";
}

inline constexpr implementation all_implementations[] = {
    implementation::in_process, implementation::in_process_parallel, implementation::channel,
    implementation::channel_parts};

using group = std::vector<std::unique_ptr<collective>>;

/// Makes a group with limits that force the given algorithm for every size.
inline group make_group(implementation w, std::uint32_t size,
                        std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  if (w == implementation::in_process) return make_in_process_group(size, {limit, std::size_t(-1)});
  if (w == implementation::in_process_parallel) return make_in_process_group(size, {limit, 0});
  const auto post = std::make_shared<testing::local_post_office>();
  group members;
  for (std::uint32_t r = 0; r < size; ++r) {
    members.push_back(
        make_channel_collective(std::make_shared<testing::local_channel>(rank_id{r}, size, post),
                                {limit, w == implementation::channel ? std::size_t{1} << 16 : 0}));
  }
  return members;
}

inline call_site site_of(std::uint32_t mb, task_kind kind = task_kind::forward) {
  return {step_id{3}, launch_seq{7}, {kind, microbatch_id{mb}, chunk_id{0}}};
}

/// Runs `work` once for each rank, in threads; returns the error of each rank, or "".
inline std::vector<std::string> run_all(group& members,
                                        const std::function<status(collective&)>& work) {
  std::vector<std::string> errors(members.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < members.size(); ++r) {
    threads.emplace_back([&, r] {
      if (const auto done = work(*members[r]); !done) errors[r] = done.message();
    });
  }
  for (auto& t : threads) t.join();
  return errors;
}

}  // namespace rrfp::tp_coord::test
