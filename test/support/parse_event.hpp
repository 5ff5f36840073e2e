/// Reads events of the stage core from the lines that to_line() writes.
#pragma once

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/base/result.hpp>
#include <rrfp/core/event.hpp>
#include <rrfp/core/placement.hpp>

namespace rrfp::testing {

inline std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const auto end = std::min(line.find(' '), line.size());
    if (end > 0) words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

template <class Integer>
bool parse_number(std::string_view text, Integer& value) {
  const auto* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc{} && parsed.ptr == end;
}

/// The error quotes the line and says what was expected.
inline result<event> parse_event(std::string_view line) {
  const auto words = words_of(line);
  const auto bad = [&](const char* expected) {
    return error{"expected " + std::string(expected) + ", got '" + std::string(line) + "'"};
  };
  if (words.empty()) return bad("an event");
  if (words[0] == "decide" && words.size() == 1) return event{decide{}};
  if (words[0] == "abort" && words.size() == 1) return event{abort{}};
  if (words[0] == "step") {
    std::uint64_t step = 0;
    step_began e;
    constexpr auto form = "'step NUMBER [microbatches NUMBER] [pieces NUMBER] [BYTES...]'";
    if (words.size() < 2 || !parse_number(words[1], step)) return bad(form);
    e.step = step_id{step};
    std::size_t next = 2;
    const auto takes = [&](const char* name) {
      return words.size() > next + 1 && words[next] == name;
    };
    if (takes("microbatches")) {
      if (!parse_number(words[next + 1], e.microbatches.emplace()) ||
          *e.microbatches > microbatches_max)
        return bad(form);
      next += 2;
    }
    if (takes("pieces")) {
      if (!parse_number(words[next + 1], e.weight_pieces) || e.weight_pieces == 0) return bad(form);
      next += 2;
    }
    for (; next < words.size(); ++next)
      if (!parse_number(words[next], e.slot_bytes.emplace_back())) return bad(form);
    return event{e};
  }
  std::uint32_t rank = 0;
  const bool has_rank = words.size() == 4 && words[2] == "rank" && parse_number(words[3], rank);
  if (words[0] == "arrived") {
    const auto t = has_rank ? task_of(words[1]) : std::nullopt;
    if (!t || (t->kind != task_kind::forward && t->kind != task_kind::backward))
      return bad("'arrived F|B MICROBATCH[.CHUNK] rank NUMBER'");
    return event{input_arrived{t->kind, t->mb, t->chunk, rank_id{rank}}};
  }
  if (words[0] == "finished") {
    std::uint64_t seq = 0;
    if (!has_rank || !parse_number(words[1], seq)) return bad("'finished NUMBER rank NUMBER'");
    return event{task_finished{launch_seq{seq}, rank_id{rank}}};
  }
  return bad("step, arrived, finished, decide or abort");
}

}  // namespace rrfp::testing
