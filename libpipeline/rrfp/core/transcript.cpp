#include <rrfp/core/transcript.hpp>

#include <charconv>
#include <vector>

#include <rrfp/core/placement.hpp>

namespace rrfp {

namespace {

std::string line_of(const step_began& e) {
  auto line = "step " + std::to_string(e.step.value());
  if (e.microbatches) line += " microbatches " + std::to_string(*e.microbatches);
  if (e.weight_pieces != 0) line += " pieces " + std::to_string(e.weight_pieces);
  for (const auto bytes : e.slot_bytes) line += " " + std::to_string(bytes);
  return line;
}
std::string line_of(const input_arrived& e) {
  return "arrived " + to_string(task{e.kind, e.mb, e.chunk}) + " rank " +
         std::to_string(e.rank.value());
}
std::string line_of(const task_finished& e) {
  return "finished " + std::to_string(e.seq.value()) + " rank " + std::to_string(e.rank.value());
}
std::string line_of(const decide&) { return "decide"; }
std::string line_of(const abort&) { return "abort"; }
std::string line_of(const launch& a) {
  const auto piece = a.piece.count == 1 ? ""
                                        : " piece " + std::to_string(a.piece.number) + "/" +
                                              std::to_string(a.piece.count);
  const auto pass = a.pass == forward_pass::once ? "" : " " + std::string(name(a.pass));
  return "launch " + std::to_string(a.seq.value()) + " " + to_string(a.what) + piece + pass + " " +
         std::string(name(a.why.why)) + " " + std::to_string(a.why.skipped) + " folds " +
         std::to_string(a.folds.first.value()) + "+" + std::to_string(a.folds.count);
}
std::string line_of(const wait& a) {
  auto line = "wait " + std::string(name(a.why));
  if (a.why != wait_cause::complete) line += " " + to_string(a.head);
  return line;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const auto end = std::min(line.find(' '), line.size());
    if (end > 0) words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

template <class Integer>
bool parse(std::string_view text, Integer& value) {
  const auto* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc{} && parsed.ptr == end;
}

}  // namespace

std::string to_line(const event& e) {
  return std::visit([](const auto& x) { return line_of(x); }, e);
}
std::string to_line(const action& a) {
  return std::visit([](const auto& x) { return line_of(x); }, a);
}

result<event> parse_event(std::string_view line) {
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
    if (words.size() < 2 || !parse(words[1], step)) return bad(form);
    e.step = step_id{step};
    std::size_t next = 2;
    const auto takes = [&](const char* name) {
      return words.size() > next + 1 && words[next] == name;
    };
    if (takes("microbatches")) {
      if (!parse(words[next + 1], e.microbatches.emplace()) || *e.microbatches > microbatches_max)
        return bad(form);
      next += 2;
    }
    if (takes("pieces")) {
      if (!parse(words[next + 1], e.weight_pieces) || e.weight_pieces == 0) return bad(form);
      next += 2;
    }
    for (; next < words.size(); ++next)
      if (!parse(words[next], e.slot_bytes.emplace_back())) return bad(form);
    return event{e};
  }
  std::uint32_t rank = 0;
  const bool has_rank = words.size() == 4 && words[2] == "rank" && parse(words[3], rank);
  if (words[0] == "arrived") {
    const auto t = has_rank ? task_of(words[1]) : std::nullopt;
    if (!t || (t->kind != task_kind::forward && t->kind != task_kind::backward))
      return bad("'arrived F|B MICROBATCH[.CHUNK] rank NUMBER'");
    return event{input_arrived{t->kind, t->mb, t->chunk, rank_id{rank}}};
  }
  if (words[0] == "finished") {
    std::uint64_t seq = 0;
    if (!has_rank || !parse(words[1], seq)) return bad("'finished NUMBER rank NUMBER'");
    return event{task_finished{launch_seq{seq}, rank_id{rank}}};
  }
  return bad("step, arrived, finished, decide or abort");
}

}  // namespace rrfp
