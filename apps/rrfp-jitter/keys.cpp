#include "keys.hpp"

#include <array>
#include <functional>

#include <rrfp/base/printable.hpp>
#include <rrfp/job/key_types.hpp>

namespace rrfp::experiment {

namespace {

template <class Root, class Section>
using keys_of = job::basic_section_keys<Root, Section>;

std::vector<job::basic_key<head_options>> make_head() {
  std::vector<job::basic_key<head_options>> table;
  keys_of<head_options, experiment> keys{table, "", &head_options::made};
  keys_of<head_options, head_options> base{table, "", std::identity{}};
  using o = experiment;
  keys.text("name", &o::name, job::path_rule::none, "text",
            "Name of the experiment; default: the name of the file.");
  base.text("job", &head_options::job, job::path_rule::files, "a job file",
            "The job that the cells change; default: a job in which every key has its default.");
  base.choice(
      "engine", &head_options::engine, {std::begin(engine_words), std::end(engine_words)},
      "Engine of the cells: the simulator, the actor runtime on emulated devices in one process, "
      "both of them, or jobs of several processes on this machine. The latter send messages of the "
      "model's size, and train the model of `job` if its `device.kind` is not `emulated`.");
  keys.integer("nodes", &o::nodes, {1, 64}, "nodes", "Processes of a job with engine `processes`.");
  keys.integers("seeds", &o::seeds, {0, 0xffffffff},
                "Values of `jitter.seed`; every run uses the same ones.");
  keys.text("baseline", &o::baseline, job::path_rule::none, "a run",
            "Run that speed-ups are relative to; default: the first run.");
  keys.texts("ablation", &o::ablation, job::path_rule::none, "an array of runs",
             "Runs of the ablation table, which shows the gain of each run over the previous one.");
  return table;
}

void add_name(std::vector<job::basic_key<entry>>& table) {
  keys_of<entry, entry> keys{table, "", std::identity{}};
  keys.text("name", &entry::name, job::path_rule::none, "text",
            "Name in reports; default: the values that are text. If lists expand the table, the "
            "values that differ are appended.");
}

job::key_table<entry> make_workload() {
  job::key_table<entry> table{"a workload", {{"paper", "The paper's measurements."}}, {}};
  add_name(table.keys);
  keys_of<entry, entry> own{table.keys, "", std::identity{}};
  own.number("gather_ms", &entry::gather_ms, {0, 1e6}, "ms",
             "Runs with agreement `candidates`: time of one all-gather. The paper's Table 3 has "
             "0.16 ms with 2 ranks and 0.23 ms with 4.");
  keys_of<entry, paper_figures> keys{table.keys, "paper", &entry::paper};
  using p = paper_figures;
  keys.number("in_order_s", &p::in_order_s, {0, 1e6}, "s", "The paper's iteration time with 1F1B.");
  keys.number("zb", &p::zb, {0, 1e3}, "", "The paper's speed-up of ZB over 1F1B.");
  keys.number("bf", &p::bf, {0, 1e3}, "", "The paper's speed-up of RRFP with BF over 1F1B.");
  keys.number("bfw", &p::bfw, {0, 1e3}, "", "The paper's speed-up of RRFP with BFW over 1F1B.");
  return table;
}

job::key_table<entry> make_run() {
  job::key_table<entry> table{"a run", {}, {}};
  add_name(table.keys);
  keys_of<entry, entry> keys{table.keys, "", std::identity{}};
  keys.choice(
      "hint", &entry::hint, {std::begin(hint_qualities), std::end(hint_qualities)},
      "The hint: the policy itself, a bad hint derived from it (mode `ready` only), or the fixed "
      "order that it gives without disturbances (`calm`) or under another seed (`stale`).");
  keys.choice("agreement", &entry::agreement,
              {std::begin(rank_agreements), std::end(rank_agreements)},
              "How the tensor-parallel ranks of a stage agree on the next task. `arrivals`: as in "
              "each job, the stage decides among the tasks whose inputs are on every rank. "
              "`candidates`: the paper's rule, with the engine `simulator` and mode `ready` "
              "without `lookahead`: each rank picks one of its ready tasks and an all-gather "
              "compares the picks; if they differ, nothing runs until another task becomes ready "
              "on a rank.");
  keys.choice("paper", &entry::column, {std::begin(paper_columns), std::end(paper_columns)},
              "The paper's figure that the run is compared with.");
  return table;
}

job::key_table<entry> make_weather() {
  job::key_table<entry> table{
      "a weather", {{"fault", "What happens to a node, with engine `processes`."}}, {}};
  add_name(table.keys);
  keys_of<entry, node_fault> keys{table.keys, "fault", &entry::fault};
  using o = node_fault;
  keys.choice("kind", &o::kind, {std::begin(fault_kinds), std::end(fault_kinds)},
              "`kill`: the node is killed and started again, which needs "
              "`recovery.max_restarts`; `stop`: SIGSTOP stops it for `seconds`.");
  keys.integer("node", &o::node, {0, 63}, "", "The node.");
  keys.integer("step", &o::step, {1, steps_max}, "steps",
               "Number of complete steps when the fault happens.");
  keys.number("seconds", &o::seconds, {0, 600, true, false}, "s", "How long it is stopped.");
  return table;
}

template <class Root>
std::string reference_of(std::string_view title, const job::key_table<Root>& table) {
  const Root defaults{};
  std::string text{title};
  for (const auto& k : table.keys) {
    const auto preset = k.get ? job::to_toml(k.get(defaults)) : "";
    const bool shown = !preset.empty() && preset != "\"\"" && preset != "[]";
    text += k.path + (shown ? " = " + preset : "") + "\n" +
            wrapped(k.type + (k.unit.empty() ? "" : "; " + k.unit), "    ", 80) +
            wrapped(k.meaning, "    ", 80);
  }
  return text;
}

}  // namespace

const job::key_table<head_options>& head_keys() {
  static const job::key_table<head_options> all{"an experiment",
                                                {{kinds[0], "The model and its machine."},
                                                 {kinds[1], "The schedule."},
                                                 {kinds[2], "The disturbances."},
                                                 {"pipeline", {}},
                                                 {"dispatch", {}},
                                                 {"jitter", {}},
                                                 {"cost", {}},
                                                 {"machine", {}},
                                                 {"images", {}},
                                                 {"train", {}},
                                                 {"device", {}},
                                                 {"recovery", {}}},
                                                make_head()};
  return all;
}

const job::key_table<entry>& entry_keys(std::size_t kind) {
  static const std::array<job::key_table<entry>, 3> all{make_workload(), make_run(),
                                                        make_weather()};
  return all[kind];
}

std::string experiment_reference() {
  auto text = reference_of("", head_keys());
  for (std::size_t i = 0; i < std::size(kinds); ++i)
    text += reference_of("\n[[" + std::string{kinds[i]} + "]]\n", entry_keys(i));
  return text +
         "\nKeys of a job, written with their section: those of [pipeline], [dispatch],\n"
         "[jitter], [cost], [machine], [images], [texts] and [experts] before the first\n"
         "table and in each table; train.steps, [recovery], device.kind and\n"
         "device.time_scale before the first table only.\n\n" +
         job::job_reference_text(study::schema());
}

}  // namespace rrfp::experiment
