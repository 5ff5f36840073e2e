#include <string>
#include <utility>
#include <variant>

#include <rrfp/policies/catalog.hpp>
#include <rrfp/policies/registry.hpp>

namespace rrfp::policies {

namespace {

constexpr std::string_view table_prefix = "table:";
constexpr std::string_view library_prefix = "lib:";

using round_maker = std::unique_ptr<policy> (*)(const pipeline_shape&, stage_id);
using schedule_maker = result<std::vector<sequence>> (*)(const pipeline_shape&);

struct entry {
  std::string_view name;
  std::string_view summary;
  std::variant<round_maker, schedule_maker> make;
};

constexpr entry entries[] = {
    {"bf", "in rounds: one ready BW, then one ready F", make_bf},
    {"bfw", "as bf, but W is split off and runs when neither B nor F can", make_bfw},
    {"bfw_plus",
     "as bfw, with W in pieces and an order that depends on the stage and its free slots; the "
     "default",
     make_bfw_plus},
    {"fb", "in rounds: one ready F, then one ready BW", make_fb},
    {"f_priority", "F whenever one is ready, else BW", make_f_priority},
    {"b_priority", "BW whenever one is ready, else F", make_b_priority},
    {"one_f_one_b", "1F1B: forwards to fill the pipeline, then F and BW alternately; 1 chunk",
     one_f_one_b},
    {"gpipe", "every F, then every BW; 1 chunk", gpipe},
    {"interleaved_1f1b", "1F1B with several chunks per stage; placement interleaved",
     interleaved_1f1b},
    {"zb_h1", "ZB-H1: the memory of 1F1B and a third of its bubble; 1 chunk", zb_h1},
    {"zb_h2",
     "ZB-H2: twice the memory of 1F1B and no bubble; 1 chunk, at least 2 * stages - 1 microbatches",
     zb_h2},
    {"zb_v", "ZB-V: the memory of 1F1B and no bubble; placement v, 2 chunks", zb_v},
    {"dualpipe_v",
     "DeepSeek's DualPipe in a V; placement v, 2 chunks, at least 2 * stages microbatches",
     dualpipe_v},
};

class round_set final : public policy_set {
 public:
  round_set(std::string_view name, round_maker maker, const pipeline_shape& shape)
      : name_(name), maker_(maker), shape_(shape) {}

  std::string_view name() const override { return name_; }
  std::unique_ptr<policy> make(stage_id stage) const override { return maker_(shape_, stage); }
  const std::vector<sequence>* sequences() const override { return nullptr; }

 private:
  const std::string_view name_;
  const round_maker maker_;
  const pipeline_shape shape_;
};

result<std::shared_ptr<const policy_set>> fixed(std::string_view name,
                                                result<std::vector<sequence>> sequences) {
  if (!sequences) return sequences.failure();
  return make_fixed_policy_set(name, *std::move(sequences));
}

error unknown(std::string_view name) {
  std::string known;
  for (const auto& p : registry().known()) known += std::string{p.name} + ", ";
  return error{"policy: expected one of " + known + "table:FILE.csv, lib:FILE.so, got \"" +
               std::string{name} + "\""};
}

class built_in final : public policy_registry {
 public:
  const std::vector<policy_info>& known() const override {
    static const auto infos = [] {
      std::vector<policy_info> list;
      for (const auto& e : entries)
        list.push_back({e.name, e.summary, std::holds_alternative<schedule_maker>(e.make)});
      return list;
    }();
    return infos;
  }

  result<std::shared_ptr<const policy_set>> make(std::string_view name,
                                                 const pipeline_shape& shape) const override {
    if (const auto valid = shape.validate(); !valid) return valid.failure();
    if (name.starts_with(table_prefix))
      return fixed(name, table(name.substr(table_prefix.size()), shape));
    if (name.starts_with(library_prefix))
      return from_library(name, name.substr(library_prefix.size()), shape);
    for (const auto& e : entries) {
      if (e.name != name) continue;
      if (const auto* schedule = std::get_if<schedule_maker>(&e.make))
        return fixed(e.name, (*schedule)(shape));
      return std::shared_ptr<const policy_set>{
          std::make_shared<round_set>(e.name, std::get<round_maker>(e.make), shape)};
    }
    return unknown(name);
  }
};

}  // namespace

const policy_registry& registry() {
  static const built_in all;
  return all;
}

}  // namespace rrfp::policies
