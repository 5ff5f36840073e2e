#include <rrfp/core/transcript.hpp>

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

}  // namespace

std::string to_line(const event& e) {
  return std::visit([](const auto& x) { return line_of(x); }, e);
}
std::string to_line(const action& a) {
  return std::visit([](const auto& x) { return line_of(x); }, a);
}

}  // namespace rrfp
