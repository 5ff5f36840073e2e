/// Small traces as other programs write them.
#pragma once

#include <zlib.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <rrfp/foreign/read_traces.hpp>

#include "../support/program.hpp"

namespace rrfp::foreign::testing {

/// A trace of torch.profiler of one rank; times in milliseconds.
class profiled {
 public:
  explicit profiled(std::string members = R"("schemaVersion":1)") : members_(std::move(members)) {}

  profiled& event(const std::string& category, const std::string& name, double begin, double end,
                  const std::string& more = "") {
    return add(fmt::format(
        R"({{"ph":"X","cat":"{}","name":"{}","pid":1,"tid":1,"ts":{:.3f},"dur":{:.3f}{}}})",
        category, name, begin * 1000, (end - begin) * 1000, more));
  }
  profiled& named(const std::string& name, double begin, double end) {
    return event("user_annotation", name, begin, end);
  }
  profiled& op(const std::string& name, double begin, double end) {
    return event("cpu_op", name, begin, end);
  }
  /// A post of a message, and until when gloo transfers it.
  profiled& message(bool is_send, double begin, double end) {
    op(is_send ? "c10d::send" : "c10d::recv_", begin, begin + 0.1);
    return named(is_send ? "gloo:send" : "gloo:recv", begin + 0.05, end);
  }
  profiled& link(double forward, double backward) {
    ++links_;
    for (const auto& [phase, at] : {std::pair{"s", forward}, std::pair{"f", backward}})
      add(fmt::format(
          R"({{"ph":"{}","cat":"fwdbwd","name":"fwdbwd","id":{},"pid":1,"tid":1,"ts":{}}})", phase,
          links_, at * 1000));
    return *this;
  }

  std::string text() const { return "{" + members_ + ",\"traceEvents\":[\n" + events_ + "\n]}"; }

 private:
  profiled& add(const std::string& event) {
    events_ += (events_.empty() ? "" : ",\n") + event;
    return *this;
  }

  std::string members_;
  std::string events_;
  int links_ = 0;
};

inline std::string rank_members(int rank) {
  return fmt::format(R"("schemaVersion":1,"distributedInfo":{{"backend":"gloo","rank":{},)"
                     R"("world_size":2,"pg_config":[{{"pg_name":"0","pg_desc":"default_pg",)"
                     R"("ranks":[0,1]}}]}})",
                     rank);
}

/// Files in a folder of their own.
class written {
 public:
  const std::string& add(const std::string& name, const std::string& text) {
    names_.push_back(folder_ / name);
    std::ofstream{names_.back(), std::ios::binary} << text;
    return names_.back();
  }
  const std::string& add_compressed(const std::string& name, const std::string& text) {
    names_.push_back(folder_ / name);
    auto* const file = gzopen(names_.back().c_str(), "wb");
    REQUIRE(gzwrite(file, text.data(), static_cast<unsigned>(text.size())) ==
            static_cast<int>(text.size()));
    gzclose(file);
    return names_.back();
  }

  found_run run(const read_options& options = {}) const {
    auto read = read_traces(names_, options);
    INFO((read ? std::string{} : read.message()));
    REQUIRE(read.ok());
    REQUIRE(read->size() == 1);
    return std::move(read->front());
  }
  /// One line that begins with the name of the file, which is left out.
  std::string refusal(const read_options& options = {}) const {
    const auto read = read_traces(names_, options);
    REQUIRE_FALSE(read.ok());
    CHECK(read.message().find('\n') == std::string::npos);
    CHECK_THAT(read.message(),
               Catch::Matchers::StartsWith(names_.front().substr(0, names_.front().rfind('/'))));
    return read.message().substr(read.message().find(':'));
  }

 private:
  test::scratch_folder folder_;
  std::vector<std::string> names_;
};

/// "F0 0-10" of each task of a stage, in milliseconds.
inline std::vector<std::string> tasks_of(const found_run& found, std::uint32_t stage,
                                         std::uint64_t step = 1) {
  std::vector<std::string> all;
  for (const auto& t : found.run.tasks)
    if (t.stage == stage_id{stage} && t.step == step_id{step})
      all.push_back(fmt::format("{} {}-{}", to_string(t.what), static_cast<double>(t.begin) / 1e6,
                                static_cast<double>(t.end) / 1e6));
  return all;
}

}  // namespace rrfp::foreign::testing
