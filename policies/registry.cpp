#include <optional>
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

/// A fixed schedule, and the shapes for which it is defined.
struct schedule {
  void (*write)(const pipeline_shape& shape, std::uint32_t s, sequence_builder& order);
  std::optional<placement> layout = {};  ///< nothing: one chunk
  /// The fewest microbatches for p stages, and the formula for them; null: one.
  std::uint32_t (*least)(std::uint32_t p) = nullptr;
  std::string_view formula = {};
};

struct entry {
  std::string_view name;
  std::string_view summary;
  std::variant<round_maker, schedule> make;
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
     schedule{one_f_one_b}},
    {"gpipe", "every F, then every BW; 1 chunk", schedule{gpipe}},
    {"interleaved_1f1b", "1F1B with several chunks per stage; placement interleaved",
     schedule{interleaved_1f1b, placement::interleaved}},
    {"zb_h1", "ZB-H1: the memory of 1F1B and a third of its bubble; 1 chunk", schedule{zb_h1}},
    {"zb_h2",
     "ZB-H2: twice the memory of 1F1B and no bubble; 1 chunk, at least 2 * stages - 1 microbatches",
     schedule{zb_h2, {}, [](std::uint32_t p) { return 2 * p - 1; }, "2p-1"}},
    {"zb_v", "ZB-V: the memory of 1F1B and no bubble; placement v, 2 chunks",
     schedule{zb_v, placement::v}},
    {"dualpipe_v",
     "DeepSeek's DualPipe in a V; placement v, 2 chunks, at least 2 * stages microbatches",
     schedule{dualpipe_v, placement::v, [](std::uint32_t p) { return 2 * p; }, "2p"}},
};

/// The error names the policy, what it expects of the shape and what came.
status check_shape(std::string_view name, const schedule& of, const pipeline_shape& shape) {
  const auto mismatch = [&](const std::string& expected, const std::string& got) {
    return error{"policy " + std::string{name} + ": expected " + expected + ", got " + got};
  };
  if (!of.layout && shape.chunks != 1) return mismatch("chunks = 1", std::to_string(shape.chunks));
  if (of.layout && shape.layout != *of.layout)
    return mismatch("placement " + std::string{rrfp::name(*of.layout)} +
                        (*of.layout == placement::v ? " with chunks = 2" : ""),
                    "placement " + std::string{rrfp::name(shape.layout)});
  const auto least = of.least != nullptr ? of.least(shape.stages) : 1;
  if (shape.microbatches >= least) return success();
  return mismatch("microbatches >= " + std::to_string(least) + " (" + std::string{of.formula} +
                      ", p = " + std::to_string(shape.stages) + " stages)",
                  std::to_string(shape.microbatches));
}

result<std::vector<sequence>> orders_of(std::string_view name, const schedule& of,
                                        const pipeline_shape& shape) {
  if (auto fits = check_shape(name, of, shape); !fits) return fits.failure();
  std::vector<sequence> orders;
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    sequence_builder order{shape.chunks};
    of.write(shape, s, order);
    std::erase_if(orders.emplace_back(std::move(order).take()),
                  [&](const task& t) { return t.mb.value() >= shape.microbatches; });
  }
  return orders;
}

result<std::shared_ptr<const policy_set>> fixed(std::string_view name,
                                                result<std::vector<sequence>> sequences) {
  if (!sequences) return sequences.failure();
  return std::make_shared<const policy_set>(name, *std::move(sequences));
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
        list.push_back({e.name, e.summary, std::holds_alternative<schedule>(e.make)});
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
      if (const auto* of = std::get_if<schedule>(&e.make))
        return fixed(e.name, orders_of(e.name, *of, shape));
      return std::make_shared<const policy_set>(
          e.name, [maker = std::get<round_maker>(e.make), shape](stage_id stage) {
            return maker(shape, stage);
          });
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
