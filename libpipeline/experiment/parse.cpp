#include <algorithm>
#include <filesystem>
#include <tuple>

#include <rrfp/experiment/cell_costs.hpp>
#include <rrfp/experiment/experiment.hpp>
#include <rrfp/experiment/limits.hpp>
#include <rrfp/job/text_file.hpp>
#include <rrfp/job/utf8.hpp>
#include <rrfp/policies/registry.hpp>
#include <rrfp/schedule/sequence.hpp>
#include <rrfp/workload/presets.hpp>

#include "keys.hpp"

namespace rrfp::experiment {

namespace {

using job::at_line;
using job::in_quotes;
using job::provenance;
using job::table_entries;

/// An experiment that is being read, with the place where each entry was set. One [[run]] may yield
/// several runs.
struct draft {
  experiment made;
  std::vector<provenance> workloads;
  std::vector<provenance> runs;
  std::vector<provenance> weathers;
};

/// In the order of document::lists.
constexpr std::string_view lists[] = {"workload", "run", "weather"};

template <class Entry>
status check_name(const std::vector<Entry>& all, std::string_view (*name_of)(const Entry&),
                  const Entry& one, std::string_view list, const job::origin& from) {
  const auto name = name_of(one);
  if (name.empty()) return from.blame(list, "expected a name, got none");
  for (const auto& other : all)
    if (name_of(other) == name)
      return from.blame(list, "expected distinct names, got " + in_quotes(name) + " twice");
  return success();
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& p : parts) text += (text.empty() || p.empty() ? "" : " ") + p;
  return text;
}

std::string text_of_slots(const std::optional<std::uint32_t>& slots) {
  const auto v = slots_value(slots);
  const auto* word = std::get_if<std::string>(&v.data);
  return "slots " + (word != nullptr ? *word : job::to_toml(v));
}

/// Every combination of the lists, each with a distinct name.
std::vector<run_options> expand(const run_matrix& m) {
  std::vector<run_options> all;
  const auto several = [](const auto& list, std::string text) {
    return list.size() > 1 ? std::move(text) : std::string{};
  };
  const auto unnamed = m.name.empty() && m.policy.size() < 2;
  for (const auto mode : m.mode)
    for (const auto& policy : m.policy)
      for (const auto hint : m.hint)
        for (const auto notice : m.notice_ms)
          for (const auto& slots : m.slots)
            for (const auto ahead : m.run_ahead)
              for (const auto admit : m.admit)
                all.push_back(
                    {join({unnamed ? policy : m.name, several(m.policy, policy),
                           several(m.mode, std::string{name(mode)}),
                           several(m.hint, std::string{name(hint)}),
                           several(m.notice_ms, "notice " + job::to_toml({notice}) + " ms"),
                           several(m.slots, text_of_slots(slots)),
                           several(m.run_ahead, "D " + std::to_string(ahead)),
                           several(m.admit, std::string{name(admit)})}),
                     mode, policy, hint, notice, slots, m.slot_bytes, ahead, admit, m.paper});
  return all;
}

// ---- reading

status read_head(draft& d, const job::document& doc, provenance& from) {
  head_draft head;
  for (const auto& e : doc.entries)
    if (std::find(std::begin(lists), std::end(lists), e.name()) != std::end(lists))
      return at_line(d.made.source, e.line)
          .blame(e.name(), "expected [[" + e.name() + "]] tables, got " + job::describe(e.content));
  if (auto read = head_keys().read(head, doc.entries, d.made.source, from); !read) return read;
  auto& made = d.made;
  if (!head.options.name.empty()) made.name = head.options.name;
  if (head.options.engine == engine_choice::wall_clock) made.engines = {engine_kind::wall_clock};
  if (head.options.engine == engine_choice::both)
    made.engines = {engine_kind::simulator, engine_kind::wall_clock};
  made.time_scale = head.options.time_scale;
  made.steps = head.options.steps;
  made.baseline = head.options.baseline;
  made.ablation = head.options.ablation;
  made.seeds.assign(head.options.seeds.begin(), head.options.seeds.end());
  if (made.seeds.empty()) return from.blame("seeds", "expected at least one, got none");
  for (auto at = made.seeds.begin(); at != made.seeds.end(); ++at)
    if (std::find(made.seeds.begin(), at, *at) != at)
      return from.blame("seeds", "expected distinct seeds, got " + std::to_string(*at) + " twice");
  return success();
}

/// Reads [cost] from the profile that the workload names; the file must hold nothing else.
status read_profile(workload_entry& to, const table_entries& table, const std::string& source,
                    provenance& from) {
  for (const auto& e : table.entries)
    if (e.path.size() > 1 && e.path[0] == "cost")
      return at_line(source, e.line)
          .blame(e.name(), "cannot be set together with profile, which sets it");
  if (!to.options.preset.empty())
    return from.blame("preset", "cannot be set together with profile");
  const std::filesystem::path beside{source};
  to.options.profile = job::absolute_path(beside.parent_path(), to.options.profile);
  const auto text = job::read_text_file(to.options.profile, "a profile");
  if (!text) return from.blame("profile", text.message());
  const auto doc = job::read_toml(*text, to.options.profile, {});
  if (!doc) return doc.failure();
  bool given = false;
  for (const auto& e : doc->entries) {
    if (e.path[0] != "cost")
      return at_line(to.options.profile, e.line)
          .blame(e.name(), "expected only [cost] in the profile of a workload");
    given = given || e.path.size() > 1;
  }
  if (auto read = workload_keys().read(to, doc->entries, to.options.profile, from); !read)
    return read;
  if (given) return success();
  return from.blame("profile",
                    to.options.profile + ": expected at least one key of [cost], got none");
}

status read_workload(draft& d, const table_entries& table) {
  workload_entry one;
  provenance from{d.made.source};
  if (auto read = workload_keys().read(one, table.entries, d.made.source, from); !read) return read;
  if (!one.options.profile.empty())
    if (auto read = read_profile(one, table, d.made.source, from); !read) return read;
  const auto place = at_line(d.made.source, table.line);
  const auto name_of = +[](const workload_entry& w) -> std::string_view { return w.options.name; };
  if (auto ok = check_name(d.made.workloads, name_of, one, "workload", place); !ok) return ok;
  d.made.workloads.push_back(std::move(one));
  d.workloads.push_back(std::move(from));
  return success();
}

/// Table paths are relative to the experiment file, like all other paths.
status read_table(run_options& r, const std::string& source, const provenance& from) {
  constexpr std::string_view prefix = "table:";
  if (!r.policy.starts_with(prefix)) return success();
  const auto folder = std::filesystem::path{source}.parent_path();
  const auto file = job::absolute_path(folder, r.policy.substr(prefix.size()));
  const auto text = job::read_text_file(file, "a table");
  if (!text) return from.blame("policy", text.message());
  r.policy = std::string{prefix} + file;
  r.table = *text;
  return success();
}

status read_run(draft& d, const table_entries& table) {
  run_draft one;
  provenance from{d.made.source};
  if (auto read = run_keys().read(one, table.entries, d.made.source, from); !read) return read;
  if (one.matrix.run_ahead.empty()) return from.blame("run_ahead", "expected at least one value");
  if (one.matrix.policy.empty()) return from.blame("policy", "expected at least one value");
  const auto place = at_line(d.made.source, table.line);
  const auto name_of = +[](const run_options& r) -> std::string_view { return r.name; };
  for (auto& r : expand(one.matrix)) {
    if (auto read = read_table(r, d.made.source, from); !read) return read;
    if (auto ok = check_name(d.made.runs, name_of, r, "run", place); !ok) return ok;
    d.made.runs.push_back(std::move(r));
    d.runs.push_back(from);
  }
  return success();
}

status read_weather(draft& d, const table_entries& table) {
  weather_draft one;
  provenance from{d.made.source};
  if (auto read = weather_keys().read(one, table.entries, d.made.source, from); !read) return read;
  one.conditions.jitter = one.jitter;
  for (const auto& e : table.entries)
    if (const auto* text = std::get_if<std::string>(&e.content.data);
        one.label.name.empty() && text != nullptr && e.name() == "preset")
      one.label.name = *text;
  weather_entry entry{one.label.name, one.conditions};
  const auto place = at_line(d.made.source, table.line);
  const auto name_of = +[](const weather_entry& w) -> std::string_view { return w.name; };
  if (auto ok = check_name(d.made.weathers, name_of, entry, "weather", place); !ok) return ok;
  d.made.weathers.push_back(std::move(entry));
  d.weathers.push_back(std::move(from));
  return success();
}

status read_lists(draft& d, const job::document& doc) {
  using reader = status (*)(draft&, const table_entries&);
  constexpr reader readers[] = {read_workload, read_run, read_weather};
  for (std::size_t i = 0; i < std::size(lists); ++i)
    for (const auto& table : doc.lists[i])
      if (auto read = readers[i](d, table); !read) return read;
  if (d.made.workloads.empty() || d.made.runs.empty()) {
    const std::string what{d.made.workloads.empty() ? "workload" : "run"};
    return error{d.made.source + ": " + what + ": expected at least one [[" + what +
                 "]], got none"};
  }
  if (d.made.weathers.empty()) {
    d.made.weathers.push_back({"none", {}});
    d.weathers.emplace_back(d.made.source);
  }
  return success();
}

// ---- checks across keys

/// The tokens of the images must fit into a sample.
status check_images(const workload_entry& w, const provenance& from) {
  const auto model = workload::preset(w.options.preset);
  if (!model || !model->images) return success();
  const auto tokens =
      w.options.sequence_tokens != 0 ? w.options.sequence_tokens : model->sequence_tokens;
  const auto fit = tokens / model->images->tokens_per_image();
  if (w.images.most <= fit) return success();
  return from.blame("images.most",
                    "expected at most " + std::to_string(fit) + ", because a sample has " +
                        std::to_string(tokens) + " tokens and an image " +
                        std::to_string(model->images->tokens_per_image()) + ", got " +
                        std::to_string(w.images.most) + std::string{from.note("images.most")},
                    "sequence_tokens");
}

/// Rejects keys that would have no effect: they are mistakes.
status check_no_unused_keys(const workload_entry& w, const provenance& from) {
  for (const auto& [key, place] : from.places()) {
    const bool of_preset = key.starts_with("machine.") || key.starts_with("images.") ||
                           key == "samples" || key == "sequence_tokens";
    if (w.options.preset.empty() && of_preset)
      return from.blame(key, "needs a preset, which it modifies");
    if (!w.options.preset.empty() && key.starts_with("cost."))
      return from.blame(key, "cannot be set together with preset, which gives the times");
  }
  const auto& c = w.cost;
  const auto is_zero = [](const std::vector<double>& list) {
    return std::all_of(list.begin(), list.end(), [](double ms) { return ms == 0; });
  };
  if (w.options.preset.empty() && is_zero(c.forward_ms) && is_zero(c.backward_ms) &&
      is_zero(c.weight_ms))
    return from.blame("cost.forward_ms",
                      "expected a time above 0 for at least one task, got 0 for "
                      "all");
  return success();
}

/// Tensor parallelism splits the decoder's heads. The encoder's heads are treated as divisible:
/// frameworks pad them (InternViT has 25).
status check_ranks(const workload_entry& w, const provenance& from) {
  const auto model = workload::preset(w.options.preset);
  if (!model) return success();
  const auto& layer = model->text.layer;
  if (layer.heads % w.options.tp == 0 && layer.feed_forward % w.options.tp == 0) return success();
  return from.blame("tp", "expected a divisor of the " + std::to_string(layer.heads) +
                              " heads of " + in_quotes(w.options.preset) + ", got " +
                              std::to_string(w.options.tp));
}

/// Limits the size to what runs in moments and a few GiB.
status check_size(const workload_entry& w, const provenance& from) {
  const auto tasks = std::uint64_t{w.options.stages} * w.options.microbatches;
  if (tasks > tasks_max)
    return from.blame("microbatches",
                      "expected stages * microbatches <= " + std::to_string(tasks_max) + ", got " +
                          std::to_string(tasks),
                      "stages");
  const auto ranks = std::uint64_t{w.options.stages} * w.options.tp * w.options.replicas;
  if (ranks > ranks_max)
    return from.blame("stages",
                      "expected stages * tp * replicas <= " + std::to_string(ranks_max) + ", got " +
                          std::to_string(ranks),
                      "tp");
  return success();
}

status check_workload(const workload_entry& w, const provenance& from) {
  if (!w.options.preset.empty()) {
    const auto known = workload::preset_names();
    if (std::find(known.begin(), known.end(), w.options.preset) == known.end())
      return from.blame("preset", "expected a known workload, got " + in_quotes(w.options.preset) +
                                      job::suggestion(w.options.preset, known, "there are "));
  }
  for (const auto holds : {check_no_unused_keys, check_ranks, check_size, check_images})
    if (auto held = holds(w, from); !held) return held;
  for (const auto& [key, list] : {std::pair{"cost.forward_ms", &w.cost.forward_ms},
                                  std::pair{"cost.backward_ms", &w.cost.backward_ms},
                                  std::pair{"cost.weight_ms", &w.cost.weight_ms}})
    if (list->size() != 1 && list->size() != w.options.stages)
      return from.blame(key, "expected one value or " + std::to_string(w.options.stages) +
                                 " (one per stage), got " + std::to_string(list->size()));
  cell c;
  c.workload = w;
  if (const auto model = cell_model::make(c); !model)
    return from.blame("stages", model.message(), "preset");
  return success();
}

status check_run(const run_options& r, const workload_entry& w, const provenance& from) {
  const pipeline_shape shape{w.options.stages, 1, w.options.microbatches, placement::linear};
  const auto policies = policies::make_policy_set(r.policy, shape);
  const auto in_workload = "workload " + in_quotes(w.options.name) + ": ";
  if (!policies) return from.blame("policy", in_workload + policies.message());
  if (r.slot_bytes != 0 && w.options.preset.empty())
    return from.blame(
        "slot_bytes",
        in_workload + "expected a preset, which determines the bytes of a microbatch");
  if (r.mode == run_mode::ready) return success();
  if (r.hint == hint_quality::reversed || r.hint == hint_quality::shuffled)
    return from.blame("hint",
                      "expected \"own\", \"calm\" or \"stale\" in mode " + in_quotes(name(r.mode)) +
                          ", got " + in_quotes(name(r.hint)),
                      "mode");
  // An order recorded within the slots fits them; whether its bytes fit shows only at run time.
  if (r.hint != hint_quality::own) return success();
  const auto* sequences = (*policies)->sequences();
  if (sequences == nullptr)
    return from.blame("policy",
                      "expected a fixed schedule in mode " + in_quotes(name(r.mode)) + ", got " +
                          in_quotes(r.policy) + ", which has none",
                      "mode");
  for (std::uint32_t s = 0; s < shape.stages; ++s) {
    const auto limit = limit_of(r, shape, stage_id{s});
    const auto fits = check_slots(shape, stage_id{s}, (*sequences)[s],
                                  {.slots = limit.slots, .run_ahead = limit.run_ahead});
    if (!fits)
      return from.blame(limit.slots != 0 ? "slots" : "run_ahead", in_workload + fits.message(),
                        "policy");
  }
  return success();
}

status check_weather(const weather_entry& entry, const workload_entry& w, const provenance& from) {
  const auto& c = entry.conditions;
  const auto check_stage = [&](const char* key, std::uint32_t stage, std::uint32_t end,
                               bool used) -> status {
    if (!used || stage < end) return success();
    return from.blame(key, "workload " + in_quotes(w.options.name) + ": expected a stage below " +
                               std::to_string(end) + ", got " + std::to_string(stage));
  };
  const auto stages = w.options.stages;
  if (auto ok = check_stage("straggler_stage", c.straggler_stage, stages, c.straggler_factor != 1);
      !ok)
    return ok;
  if (auto ok = check_stage("pause_stage", c.pause_stage, stages, c.pause_ms != 0); !ok) return ok;
  const bool slow = c.slow_link_factor != 1;
  if (slow && stages == 1)
    return from.blame("slow_link_factor",
                      "workload " + in_quotes(w.options.name) + ": needs at least two stages");
  if (auto ok = check_stage("slow_link_stage", c.slow_link_stage, stages - 1, slow); !ok) return ok;
  const std::tuple<const char*, bool, const char*> needed[] = {
      {"compute_sigma", c.jitter.compute != weather::compute_jitter::none, "compute"},
      {"straggler_stage", c.straggler_factor != 1, "straggler_factor"},
      {"pause_stage", c.pause_ms != 0, "pause_ms"},
      {"slow_link_stage", slow, "slow_link_factor"}};
  const auto set = from.places();
  for (const auto& [key, has_effect, other] : needed)
    if (set.contains(key) && !has_effect)
      return from.blame(
          key, std::string{"expected "} + other + " as well: without it the key has no effect");
  if (c.jitter.link != weather::link_jitter::none && c.jitter.link_mean_ms == 0)
    return from.blame(
        "link_mean_ms",
        "expected a number > 0 with link, got 0" + std::string{from.note("link_mean_ms")}, "link");
  return success();
}

status check_names(const experiment& e, const provenance& from) {
  const auto known = [&](std::string_view key, const std::string& name) -> status {
    std::vector<std::string_view> names;
    for (const auto& r : e.runs) names.push_back(r.name);
    if (std::find(names.begin(), names.end(), name) != names.end()) return success();
    return from.blame(key, "expected the name of a run, got " + in_quotes(name) +
                               job::suggestion(name, names, "there are "));
  };
  if (auto ok = known("baseline", e.baseline); !ok) return ok;
  for (const auto& name : e.ablation)
    if (auto ok = known("ablation", name); !ok) return ok;
  return success();
}

status validate(const draft& d, const provenance& head) {
  const auto& e = d.made;
  if (auto ok = check_names(e, head); !ok) return ok;
  if (e.cells() > cells_max)
    return head.blame(
        "seeds", "expected workloads * weathers * runs * seeds <= " + std::to_string(cells_max) +
                     ", got " + std::to_string(e.cells()));
  for (std::size_t w = 0; w < e.workloads.size(); ++w) {
    if (auto ok = check_workload(e.workloads[w], d.workloads[w]); !ok) return ok;
    for (std::size_t r = 0; r < e.runs.size(); ++r)
      if (auto ok = check_run(e.runs[r], e.workloads[w], d.runs[r]); !ok) return ok;
    for (std::size_t i = 0; i < e.weathers.size(); ++i)
      if (auto ok = check_weather(e.weathers[i], e.workloads[w], d.weathers[i]); !ok) return ok;
  }
  return success();
}

}  // namespace

result<experiment> parse_experiment(std::string_view text, const std::string& source) {
  const auto doc = job::read_toml(text, source, lists);
  if (!doc) return doc.failure();
  const std::filesystem::path file{source};
  draft d;
  d.made.source = source;
  d.made.name = file.has_stem() ? file.stem().string() : "experiment";
  provenance head{source};
  if (auto read = read_head(d, *doc, head); !read) return read.failure();
  // Table paths start with this folder, and they are written to JSON.
  if (const auto good = job::check_utf8(
          std::string_view{job::absolute_path(file.parent_path(), file.filename())});
      !good)
    return error{source + ": the path of an experiment: " + good.message()};
  if (auto read = read_lists(d, *doc); !read) return read.failure();
  if (d.made.baseline.empty()) d.made.baseline = d.made.runs.front().name;
  if (auto valid = validate(d, head); !valid) return valid.failure();
  return std::move(d.made);
}

result<experiment> load_experiment(const std::string& path) {
  const auto text = job::read_text_file(path, "an experiment file");
  if (!text) return text.failure();
  return parse_experiment(*text, path);
}

}  // namespace rrfp::experiment
