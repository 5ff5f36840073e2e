#include "keys.hpp"

#include <rrfp/base/check.hpp>
#include <rrfp/job/jitter_keys.hpp>
#include <rrfp/job/key_types.hpp>
#include <rrfp/workload/pipeline_cost.hpp>
#include <rrfp/workload/presets.hpp>

namespace rrfp::experiment {

namespace {

using job::value;
using job::value_list;
using job::words;

constexpr double ms_max = 1e6;
constexpr std::int64_t bytes_max = std::int64_t{1} << 50;
const words slots_words{"auto", "none", "1f1b", "p"};

template <class Root, class Section>
using keys_of = job::basic_section_keys<Root, Section>;

/// Calls `read_item` on the value, or on each value of a list, which must not be empty.
template <class ReadItem>
status for_one_or_each(const value& v, ReadItem read_item) {
  const auto* list = std::get_if<value_list>(&v.data);
  if (list == nullptr) return read_item(v);
  if (list->empty()) return error{"expected at least one value, got []"};
  for (std::size_t i = 0; i < list->size(); ++i)
    if (auto ok = read_item((*list)[i]); !ok)
      return error{"entry " + std::to_string(i) + ": " + ok.message()};
  return success();
}

/// Adds a key that takes one word or a list; the words map to the enumerators from 0.
template <class Enum>
void add_choices(std::vector<job::basic_key<run_draft>>& table, const char* leaf,
                 std::vector<Enum> run_matrix::*field, const words& allowed, const char* meaning) {
  table.push_back(
      {leaf, job::type_name(allowed) + ", or an array", "", meaning, true, job::path_rule::none,
       [=](run_draft& to, const value& v) -> status {
         std::vector<Enum> all;
         const auto read = for_one_or_each(v, [&](const value& item) -> status {
           const auto at = job::read_word(item, allowed);
           if (!at) return at.failure();
           all.push_back(static_cast<Enum>(*at));
           return success();
         });
         if (read) to.matrix.*field = std::move(all);
         return read;
       },
       [=](const run_draft& from) {
         return value{std::string{allowed[static_cast<std::size_t>((from.matrix.*field).front())]}};
       }});
}

void add_slots(std::vector<job::basic_key<run_draft>>& table) {
  table.push_back(
      {"slots", "`auto`, `none`, `1f1b`, `p` or integer >= 1, or an array", "microbatches",
       "Maximum number of microbatches that may hold activations on a stage; `1f1b`: p - s on "
       "stage s of p; `p`: p on every stage; `auto`: min(2 p, m) in mode `ready`, else `none`.",
       true, job::path_rule::none,
       [](run_draft& to, const value& v) -> status {
         std::vector<std::optional<std::uint32_t>> all;
         const auto read = for_one_or_each(v, [&](const value& item) -> status {
           const auto n = job::read_integer_or_word(item, {1, 65536}, slots_words);
           if (!n) return n.failure();
           switch (*n) {
             case -4: all.emplace_back(); break;
             case -3: all.emplace_back(0U); break;
             case -2: all.emplace_back(slots_of_1f1b); break;
             case -1: all.emplace_back(slots_of_stages); break;
             default: all.emplace_back(static_cast<std::uint32_t>(*n));
           }
           return success();
         });
         if (read) to.matrix.slots = std::move(all);
         return read;
       },
       [](const run_draft& from) { return slots_value(from.matrix.slots.front()); }});
}

void add_weather_preset(std::vector<job::basic_key<weather_draft>>& table) {
  const words allowed{"none", "J0", "J1", "J2", "J3", "measured", "measured-lognormal"};
  table.push_back(
      {"preset",
       job::type_name(allowed),
       "",
       "The paper's jitter levels, or its measured spread; other keys of the table override it.",
       true,
       job::path_rule::none,
       [allowed](weather_draft& to, const value& v) -> status {
         const auto at = job::read_word(v, allowed);
         if (!at) return at.failure();
         to.conditions = *weather::conditions_of(allowed[*at]);
         to.jitter = to.conditions.jitter;
         return success();
       },
       {}});
}

std::vector<job::basic_key<head_draft>> make_head() {
  std::vector<job::basic_key<head_draft>> table;
  keys_of<head_draft, head_options> keys{table, "", &head_draft::options};
  using o = head_options;
  keys.text("name", &o::name, job::path_rule::none, "text",
            "Name of the experiment; default: the name of the file.");
  keys.choice(
      "engine", &o::engine, {"simulator", "wall-clock", "both"},
      "Engine of the cells: the simulator, the actor runtime on emulated devices, or both.");
  keys.number("time_scale", &o::time_scale, {1e-3, 1e3}, "",
              "Wall clock: ratio of its time to the modelled time. Small values run faster, but "
              "the runtime's own overhead shows more.");
  keys.integers("seeds", &o::seeds, {0, 0xffffffff},
                "Seeds of weather and images; every run uses the same ones.");
  keys.integer("steps", &o::steps, {1, 100'000}, "", "Number of steps of each cell.");
  keys.text("baseline", &o::baseline, job::path_rule::none, "a run",
            "Run that speed-ups are relative to; default: the first run.");
  keys.texts("ablation", &o::ablation, job::path_rule::none, "an array of runs",
             "Runs of the ablation table, which shows the gain of each run over the previous one.");
  return table;
}

void add_workload(std::vector<job::basic_key<workload_entry>>& table) {
  keys_of<workload_entry, workload_options> keys{table, "", &workload_entry::options};
  using o = workload_options;
  keys.text("name", &o::name, job::path_rule::none, "text", "Name of the workload in reports.");
  std::string presets;
  for (const auto p : workload::preset_names()) presets += "`" + std::string{p} + "`, ";
  keys.text("preset", &o::preset, job::path_rule::none, (presets + "or none").c_str(),
            "The model; without a preset, `cost` gives the task times.");
  // A short form for cost.*: an outcome depends on the times, not on the file.
  table.push_back({"profile",
                   "a file",
                   "",
                   "File with [cost], as rrfp-report --profile FILE.toml writes it; replaces "
                   "`preset` and `cost`.",
                   true,
                   job::path_rule::files,
                   [](workload_entry& to, const value& v) {
                     const auto text = job::read_text(v);
                     if (!text) return status{text.failure()};
                     to.options.profile = *text;
                     return success();
                   },
                   {}});
  keys.integer("stages", &o::stages, {1, 1024}, "", "Number of physical stages, one chunk each.");
  keys.integer("microbatches", &o::microbatches, {1, 65536}, "",
               "Number of microbatches per step and replica.");
  keys.integer("tp", &o::tp, {1, 64}, "", "Number of tensor-parallel ranks per stage.");
  keys.integer("replicas", &o::replicas, {1, 1024}, "", "Number of data-parallel copies.");
  keys.integer("samples", &o::samples, {1, 64}, "", "Number of samples in a microbatch.");
  keys.integer("sequence_tokens", &o::sequence_tokens, {0, 1 << 20}, "tokens",
               "Decoder tokens per sample; 0: the preset's value.");
}

void add_machine(std::vector<job::basic_key<workload_entry>>& table) {
  keys_of<workload_entry, machine_options> keys{table, "machine", &workload_entry::machine};
  using o = machine_options;
  const job::number_range rate{0, 1e9, true, false};
  keys.number("tflops", &o::tflops, rate, "TFLOP/s", "Peak throughput of a device.");
  keys.number("memory_gb_s", &o::memory_gb_s, rate, "GB/s", "Memory bandwidth of a device.");
  keys.number("memory_gib", &o::memory_gib, {0, 1e6}, "GiB", "Memory of a device.");
  keys.integer("group", &o::group, {1, 4096}, "devices", "Number of devices on a node.");
  keys.number("within_gb_s", &o::within_gb_s, rate, "GB/s", "Bandwidth between devices of a node.");
  keys.number("within_us", &o::within_us, {0, ms_max}, "us", "Latency between devices of a node.");
  keys.number("between_gb_s", &o::between_gb_s, rate, "GB/s",
              "Bandwidth of a node's network adapter.");
  keys.number("between_us", &o::between_us, {0, ms_max}, "us", "Latency between nodes.");
  keys.number("efficiency", &o::efficiency, {0, 1, true, false}, "",
              "Share of the peaks that kernels reach.");
}

void add_images(std::vector<job::basic_key<workload_entry>>& table) {
  using workload::image_spread;
  keys_of<workload_entry, workload::image_counts> keys{table, "images", &workload_entry::images};
  using o = workload::image_counts;
  keys.choice(
      "spread", &o::spread,
      {name(image_spread::fixed), name(image_spread::uniform), name(image_spread::geometric)},
      "Distribution of the number of images in a sample.");
  keys.number("mean", &o::mean, {0, workload::pipeline_cost::images_max / 2.0}, "images",
              "Mean number of images in a sample, before the cut at `most`.");
  keys.integer("most", &o::most, {0, workload::pipeline_cost::images_max}, "images",
               "Maximum number of images in a sample.");
}

void add_cost_and_paper(std::vector<job::basic_key<workload_entry>>& table) {
  keys_of<workload_entry, job::cost_options> cost{table, "cost", &workload_entry::cost};
  using c = job::cost_options;
  const job::number_range ms{0, ms_max};
  cost.numbers("forward_ms", &c::forward_ms, ms, "ms",
               "Duration of the forward of a microbatch; one value, or one per stage.");
  cost.numbers("backward_ms", &c::backward_ms, ms, "ms",
               "Duration of the input gradient alone; values as for `forward_ms`.");
  cost.numbers("weight_ms", &c::weight_ms, ms, "ms",
               "Duration of the weight gradient alone; values as for `forward_ms`.");
  cost.number("link_ms", &c::link_ms, ms, "ms",
              "Time from the end of a task to the arrival of its result.");
  keys_of<workload_entry, paper_figures> paper{table, "paper", &workload_entry::paper};
  using p = paper_figures;
  paper.number("in_order_s", &p::in_order_s, {0, 1e6}, "s",
               "The paper's iteration time with 1F1B.");
  paper.number("zb", &p::zb, {0, 1e3}, "", "The paper's speed-up of ZB over 1F1B.");
  paper.number("bf", &p::bf, {0, 1e3}, "", "The paper's speed-up of RRFP with BF over 1F1B.");
  paper.number("bfw", &p::bfw, {0, 1e3}, "", "The paper's speed-up of RRFP with BFW over 1F1B.");
}

std::vector<job::basic_key<workload_entry>> make_workload() {
  std::vector<job::basic_key<workload_entry>> table;
  add_workload(table);
  add_machine(table);
  add_images(table);
  add_cost_and_paper(table);
  return table;
}

std::vector<job::basic_key<run_draft>> make_run() {
  std::vector<job::basic_key<run_draft>> table;
  keys_of<run_draft, run_matrix> keys{table, "", &run_draft::matrix};
  using o = run_matrix;
  keys.text(
      "name", &o::name, job::path_rule::none, "text",
      "Name of the run in reports; runs expanded from lists get the differing values appended.");
  add_choices(table, "mode", &o::mode,
              {name(run_mode::blocking), name(run_mode::in_order), name(run_mode::ready)},
              "`blocking`: in order, with paired send and receive; `in-order`: in order, with "
              "asynchronous messages; `ready`: by readiness.");
  keys.texts("policy", &o::policy, job::path_rule::none, "a policy, or an array of them",
             "The sequence to follow (in order), or the hint.");
  add_choices(
      table, "hint", &o::hint,
      {name(hint_quality::own), name(hint_quality::reversed), name(hint_quality::shuffled),
       name(hint_quality::calm), name(hint_quality::stale)},
      "The hint: the policy itself, a bad hint derived from it (mode `ready` only), or the fixed "
      "order that it gives without disturbances (`calm`) or under another seed (`stale`).");
  keys.numbers("notice_ms", &o::notice_ms, {0, ms_max}, "ms",
               "Delay between the arrival of an input and its delivery to the stage.");
  add_slots(table);
  keys.bytes("slot_bytes", &o::slot_bytes, bytes_max,
             "Maximum bytes of activations on a stage; 0: no limit.");
  keys.integers("run_ahead", &o::run_ahead, {0, 65536},
                "The paper's D: maximum number of forwards by which a stage may be ahead of its "
                "backwards; 0: no limit.");
  add_choices(table, "admission", &o::admit,
              {name(admission::loaded), name(admission::small_large_small),
               name(admission::large_first), name(admission::small_first)},
              "Order in which stage 0 admits the microbatches of a step.");
  keys.choice("paper", &o::paper, {"none", "zb", "bf", "bfw"},
              "The paper's figure that the run is compared with.");
  return table;
}

void add_jitter(std::vector<job::basic_key<weather_draft>>& table) {
  keys_of<weather_draft, weather::jitter_options> keys{table, "", &weather_draft::jitter};
  job::add_jitter_keys(keys);
}

void add_conditions(std::vector<job::basic_key<weather_draft>>& table) {
  using weather::link_spread;
  keys_of<weather_draft, weather::conditions> keys{table, "", &weather_draft::conditions};
  using o = weather::conditions;
  keys.choice("spread", &o::spread,
              {name(link_spread::none), name(link_spread::lognormal), name(link_spread::stalls)},
              "Distribution of the factor on a message's own time.");
  keys.number("spread_sigma", &o::spread_sigma, {0, 10}, "",
              "lognormal: standard deviation of the logarithm; the median is 1.");
  keys.number("stall_probability", &o::stall_probability, {0, 1}, "",
              "stalls: share of messages that stall.");
  keys.number("stall_factor", &o::stall_factor, {0, 1e6}, "",
              "stalls: minimum extra time, in multiples of the message's own time.");
  keys.number("stall_alpha", &o::stall_alpha, {1, 1e6}, "",
              "stalls: tail index of the extra time.");
  keys.number("stall_unit_ms", &o::stall_unit_ms, {0, ms_max}, "ms",
              "stalls: unit of the extra time, in place of the message's own time; 0: the "
              "message's own time.");
  keys.integer("straggler_stage", &o::straggler_stage, {0, 1023}, "",
               "Stage whose tasks are slow.");
  keys.number("straggler_factor", &o::straggler_factor, {0, 1e6, true, false}, "",
              "Factor on the durations of that stage's tasks; 1: no straggler.");
  keys.integer("pause_stage", &o::pause_stage, {0, 1023}, "",
               "Stage of which one rank pauses once per step.");
  keys.number("pause_ms", &o::pause_ms, {0, ms_max}, "ms", "Length of the pause; 0: no pause.");
  keys.integer("slow_link_stage", &o::slow_link_stage, {0, 1023}, "",
               "Stage whose messages to and from the next stage are slow.");
  keys.number("slow_link_factor", &o::slow_link_factor, {0, 1e6}, "",
              "Factor on the time of those messages; 1: no slow link.");
  keys.number("loss_probability", &o::loss_probability, {0, weather::loss_probability_max}, "",
              "Probability that an attempt to send a message is lost.");
  keys.number("resend_ms", &o::resend_ms, {1e-3, ms_max}, "ms",
              "Time after which a lost message is sent again.");
  keys.number("double_probability", &o::double_probability, {0, 1}, "",
              "Probability that a message arrives twice.");
}

std::vector<job::basic_key<weather_draft>> make_weather() {
  std::vector<job::basic_key<weather_draft>> table;
  keys_of<weather_draft, weather_name> keys{table, "", &weather_draft::label};
  keys.text("name", &weather_name::name, job::path_rule::none, "text",
            "Name of the weather in reports; default: the name of the preset.");
  add_weather_preset(table);
  add_jitter(table);
  add_conditions(table);
  return table;
}

template <class Root>
std::string reference_of(std::string_view title, const job::key_table<Root>& table) {
  const Root defaults{};
  std::string text{title};
  for (const auto& k : table.keys) {
    const auto preset = k.get ? job::to_toml(k.get(defaults)) : "";
    const bool shown = !preset.empty() && preset != "\"\"" && preset != "[]";
    text += k.path + (shown ? " = " + preset : "") + "\n    " + k.type +
            (k.unit.empty() ? "" : "; " + k.unit) + "\n    " + k.meaning + "\n";
  }
  return text;
}

}  // namespace

job::value slots_value(const std::optional<std::uint32_t>& slots) {
  if (!slots) return {std::string{slots_words[0]}};
  if (*slots == 0) return {std::string{slots_words[1]}};
  if (*slots == slots_of_1f1b) return {std::string{slots_words[2]}};
  if (*slots == slots_of_stages) return {std::string{slots_words[3]}};
  return {std::int64_t{*slots}};
}

run_matrix run_matrix_of(const run_options& r) {
  return {r.name,    {r.mode},     {r.policy},    {r.hint},  {r.notice_ms},
          {r.slots}, r.slot_bytes, {r.run_ahead}, {r.admit}, r.paper};
}

const job::key_table<head_draft>& head_keys() {
  static const job::key_table<head_draft> all{"an experiment",
                                              {{"workload", "The model and its machine."},
                                               {"run", "The schedule."},
                                               {"weather", "The disturbances."}},
                                              make_head()};
  return all;
}

const job::key_table<workload_entry>& workload_keys() {
  static const job::key_table<workload_entry> all{
      "a workload",
      {{"machine", "The machine."},
       {"images", "The number of images in a sample."},
       {"cost", "The task durations, without a preset."},
       {"paper", "The paper's measurements."}},
      make_workload()};
  return all;
}

const job::key_table<run_draft>& run_keys() {
  static const job::key_table<run_draft> all{"a run", {}, make_run()};
  return all;
}

const job::key_table<weather_draft>& weather_keys() {
  static const job::key_table<weather_draft> all{"a weather", {}, make_weather()};
  return all;
}

std::string experiment_reference() {
  return reference_of("", head_keys()) + reference_of("\n[[workload]]\n", workload_keys()) +
         reference_of("\n[[run]]\n", run_keys()) + reference_of("\n[[weather]]\n", weather_keys());
}

}  // namespace rrfp::experiment
