#include <algorithm>
#include <filesystem>
#include <tuple>

#include <rrfp/io/text_file.hpp>
#include <rrfp/job/job.hpp>
#include <rrfp/job/overrides.hpp>
#include <rrfp/job/schema.hpp>
#include <rrfp/job/value.hpp>
#include <rrfp/policies/registry.hpp>

#include "cell.hpp"
#include "keys.hpp"

namespace rrfp::experiment {

namespace {

using job::at_line;
using job::in_quotes;
using job::provenance;
using job::table_entries;

/// Steps of a cell if the experiment sets none.
constexpr std::uint64_t default_steps = 3;

// ---- entries

status add_job_key(job::overrides& to, const job::entry& e, const std::string& source) {
  if (auto set = to.add(e, source); !set) return set;
  const auto from = at_line(source, e.line);
  if (e.name() == "jitter.seed")
    return from.blame(e.name(), "expected `seeds`, which sets it for all cells");
  if (e.path.size() > 1 && !is_cell_key(e.name()))
    return from.blame(e.name(), "has no effect in an experiment");
  return success();
}

/// Sets a key of the entry itself, or of a job.
status set_key(entry& to, const job::entry& e, std::size_t kind, const std::string& source) {
  const auto from = at_line(source, e.line);
  const auto& own = entry_keys(kind);
  if (own.find(e.name()) != nullptr || own.is_section(e.path[0])) {
    const auto k = own.key_of(e, from);
    if (!k) return k.failure();
    if (*k == nullptr) return success();
    if (const auto set = (*k)->set(to, e.content); !set) return from.blame(e.name(), set.message());
    return success();
  }
  if (auto set = add_job_key(to.settings, e, source); !set) return set;
  const bool is_of_base = e.path[0] == "train" || e.path[0] == "device" || e.path[0] == "recovery";
  if (e.path.size() == 1 || !is_of_base) return success();
  return from.blame(e.name(), "expected before the first table, because it applies to all cells");
}

/// The entry with each single value of a list that the key does not take as a whole.
std::vector<job::entry> values_of(const job::entry& e, std::size_t kind,
                                  const std::string& source) {
  const auto* list = std::get_if<job::value_list>(&e.content.data);
  entry scratch;
  if (list == nullptr || list->empty() || set_key(scratch, e, kind, source)) return {e};
  std::vector<job::entry> all;
  for (const auto& item : *list) {
    all.push_back(e);
    all.back().content = item;
  }
  return all;
}

bool is_text(const job::entry& e, std::size_t kind) {
  const auto* own = entry_keys(kind).find(e.name());
  if (own != nullptr) return own->is_text;
  const auto* of_job = study::schema().find(e.name());
  return of_job != nullptr && of_job->is_text;
}

/// What distinguishes one of several values in a name: "bf", "slots 1f1b".
std::string label_of(const job::entry& e, std::size_t kind) {
  const auto* word = std::get_if<std::string>(&e.content.data);
  const auto text = word != nullptr ? *word : job::to_toml(e.content);
  return is_text(e, kind) ? text : e.path.back() + " " + text;
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& p : parts) text += (text.empty() || p.empty() ? "" : " ") + p;
  return text;
}

/// Every combination of the lists, each with its name.
result<std::vector<entry>> read_entry(const table_entries& table, std::size_t kind,
                                      const std::string& source) {
  std::vector<std::vector<job::entry>> keys;
  bool is_named = false;
  std::size_t combinations = 1;
  for (const auto& e : table.entries) {
    keys.push_back(values_of(e, kind, source));
    is_named = is_named || e.name() == "name";
    combinations *= keys.back().size();
    if (combinations > cells_max)
      return at_line(source, e.line)
          .blame(e.name(), "expected at most " + std::to_string(cells_max) + " combinations");
  }
  std::vector<entry> all;
  for (std::size_t number = 0; number < combinations; ++number) {
    entry one;
    std::vector<std::string> labels;
    auto rest = number, size = combinations;
    for (const auto& values : keys) {
      size /= values.size();
      const auto& e = values[rest / size];
      rest %= size;
      if (auto set = set_key(one, e, kind, source); !set) return set.failure();
      if (values.size() > 1 && (is_named || !is_text(e, kind))) labels.push_back(label_of(e, kind));
    }
    if (!is_named) one.name = join(one.settings.texts());
    labels.insert(labels.begin(), one.name);
    one.name = join(labels);
    all.push_back(std::move(one));
  }
  return all;
}

// ---- the file

struct draft : head_options {
  job::job base;
  /// The places of the head's keys.
  provenance head;
};

status check_name(const std::vector<entry>& all, const std::string& name,
                  const table_entries& table, std::size_t kind, const std::string& source) {
  const auto from = at_line(source, table.line);
  if (name.empty()) return from.blame(kinds[kind], "expected a name, got none");
  for (const auto& other : all)
    if (other.name == name)
      return from.blame(kinds[kind], "expected distinct names, got " + in_quotes(name) + " twice");
  return success();
}

result<std::vector<entry>> read_kind(const job::document& doc, std::size_t kind,
                                     const std::string& source) {
  std::vector<entry> all;
  for (const auto& table : doc.lists[kind]) {
    auto read = read_entry(table, kind, source);
    if (!read) return read.failure();
    for (auto& one : *read) {
      if (auto ok = check_name(all, one.name, table, kind, source); !ok) return ok.failure();
      all.push_back(std::move(one));
    }
  }
  if (all.empty() && kinds[kind] != "weather") {
    const std::string what{kinds[kind]};
    return error{source + ": " + what + ": expected at least one [[" + what + "]], got none"};
  }
  return all;
}

/// Reads the keys before the first table: those of the experiment, and those of the base.
status read_head(draft& d, const job::document& doc) {
  const auto& source = d.made.source;
  std::vector<job::entry> own;
  job::overrides settings{study::schema()};
  const auto& of_job = study::schema();
  for (const auto& e : doc.entries) {
    const auto from = at_line(source, e.line);
    if (std::ranges::find(kinds, e.path[0]) != std::end(kinds))
      return from.blame(e.path[0],
                        "expected [[" + e.path[0] + "]] tables, got " + job::describe(e.content));
    if (!of_job.table().is_section(e.path[0])) {
      const auto meant = std::ranges::find(of_job.keys(), e.name(), &job::key::leaf);
      if (meant != of_job.keys().end() && head_keys().find(e.name()) == nullptr)
        return from.blame(e.name(), "unknown key, did you mean " + meant->path + "?");
      own.push_back(e);
      continue;
    }
    if (auto set = add_job_key(settings, e, source); !set) return set;
  }
  if (auto read = head_keys().read(d, own, source, d.head); !read) return read;
  d.base.train.steps = default_steps;
  d.base.device.kind = job::device_kind::emulated;
  if (!d.job.empty()) {
    const auto path = job::absolute_path(std::filesystem::path{source}.parent_path(), d.job);
    auto loaded =
        job::load_job(path, policies::registry(), {}, job::job_use::simulate, study::schema());
    if (!loaded) return loaded.failure();
    if (!loaded->compare.empty())
      return d.head.blame("job", path + ": expected a job without [[compare]]");
    d.base = std::move(*loaded);
  }
  settings.apply_to(d.base);
  d.base.source = source;

  auto& made = d.made;
  made.engines = engines_of(engine_words[static_cast<std::size_t>(d.engine)]);
  made.time_scale = d.base.device.time_scale;
  made.steps = d.base.train.steps;
  if (made.seeds.empty()) return d.head.blame("seeds", "expected at least one, got none");
  for (auto at = made.seeds.begin(); at != made.seeds.end(); ++at)
    if (std::find(made.seeds.begin(), at, *at) != at)
      return d.head.blame("seeds",
                          "expected distinct seeds, got " + std::to_string(*at) + " twice");
  if (made.steps > steps_max)
    return job::blame(d.base, "train.steps",
                      "expected at most " + std::to_string(steps_max) + " steps, got " +
                          std::to_string(made.steps));
  return success();
}

/// Whether the jobs themselves have jitter, which an experiment without weathers runs under.
bool disturbs(const std::vector<workload_entry>& workloads) {
  return std::ranges::any_of(workloads, [](const auto& w) {
    return simulate::disturbs_tasks(w.job.jitter) || simulate::disturbs_messages(w.job.jitter);
  });
}

status read_entries(draft& d, const job::document& doc) {
  auto& made = d.made;
  auto workloads = read_kind(doc, 0, made.source);
  if (!workloads) return workloads.failure();
  for (auto& one : *workloads) {
    auto& w = made.workloads.emplace_back(workload_entry{std::move(one), d.base});
    w.settings.apply_to(w.job);
  }
  auto runs = read_kind(doc, 1, made.source);
  if (!runs) return runs.failure();
  for (auto& one : *runs) {
    auto j = made.workloads.front().job;
    one.settings.apply_to(j);
    made.runs.push_back({std::move(one), mode_of(j)});
  }
  auto weathers = read_kind(doc, 2, made.source);
  if (!weathers) return weathers.failure();
  made.weathers = *std::move(weathers);
  if (made.weathers.empty())
    made.weathers.emplace_back().name = disturbs(made.workloads) ? "of the job" : "none";
  if (made.baseline.empty()) made.baseline = made.runs.front().name;
  return success();
}

// ---- checks

/// The message of `e` with the entries that it holds for.
error in_cell(error e, const cell& c) {
  e.message += "; in workload " + in_quotes(c.workload) + ", run " + in_quotes(c.run) +
               ", weather " + in_quotes(c.weather);
  return e;
}

/// What only real jobs can do, and what they cannot.
status check_processes(const cell& c) {
  const auto& f = c.fault;
  const auto wrong = [&](const std::string& what) {
    return error{c.job.source + ": weather " + in_quotes(c.weather) + ": fault." + what};
  };
  if (c.engine != engine_kind::processes) {
    if (f.kind == fault_kind::none) return success();
    return wrong("kind: expected engine = \"processes\", got another one");
  }
  if (c.hint != hint_quality::own)
    return error{c.job.source + ": run " + in_quotes(c.run) +
                 ": hint: expected \"own\" with engine = \"processes\", got " +
                 in_quotes(name(c.hint))};
  if (f.kind == fault_kind::none) return success();
  if (f.node >= c.nodes)
    return wrong("node: expected a number below " + std::to_string(c.nodes) +
                 ", that of the nodes, got " + std::to_string(f.node));
  if (f.step >= c.job.train.steps)
    return wrong("step: expected a number below train.steps, " + std::to_string(c.job.train.steps) +
                 ", got " + std::to_string(f.step));
  if (f.kind == fault_kind::kill && c.job.recovery.max_restarts == 0)
    return job::blame(c.job, "recovery.max_restarts",
                      "expected at least 1 with fault.kind = \"kill\", got 0");
  return success();
}

/// What agreement by candidates needs.
status check_agreement(const cell& c) {
  if (c.agreement == rank_agreement::arrivals) return success();
  const auto refused = [&](const std::string& expected, const std::string& got) {
    return error{c.job.source + ": run " + in_quotes(c.run) +
                 ": agreement: \"candidates\" expects " + expected + ", got " + got};
  };
  const auto& d = c.job.dispatch;
  if (c.engine != engine_kind::simulator)
    return refused("engine = \"simulator\"", in_quotes(name(c.engine)));
  if (d.mode != dispatch_mode::ready)
    return refused("dispatch.mode = \"ready\"", in_quotes(name(d.mode)));
  for (const auto& [key, value] : {std::pair{"dispatch.lookahead", d.lookahead},
                                   {"dispatch.early_forwards", d.early_forwards}})
    if (value != 0) return refused(std::string{key} + " = 0", std::to_string(value));
  return success();
}

/// What the engines need beyond the checks of a job.
status check_measurable(const cell& c) {
  const auto& j = c.job;
  const auto ranks = std::uint64_t{j.pipeline.stages} * j.pipeline.tp * j.pipeline.replicas;
  if (ranks > ranks_max)
    return job::blame(j, "pipeline.stages",
                      "expected stages * tp * replicas <= " + std::to_string(ranks_max) + ", got " +
                          std::to_string(ranks));
  const auto is_zero = [](const std::vector<double>& list) {
    return std::ranges::all_of(list, [](double ms) { return ms == 0; });
  };
  const bool has_preset = !study::options_of(j).cost.preset.empty();
  if (!has_preset && is_zero(j.cost.forward_ms) && is_zero(j.cost.backward_ms) &&
      is_zero(j.cost.weight_ms))
    return job::blame(j, "cost.forward_ms",
                      "expected a time above 0 for at least one task, got 0 for all");
  if (j.dispatch.slot_bytes != 0 && !has_preset)
    return job::blame(j, "dispatch.slot_bytes",
                      "expected cost.preset, which determines the bytes of a microbatch");
  if (auto ok = check_processes(c); !ok) return ok;
  if (auto ok = check_agreement(c); !ok) return ok;
  if (j.dispatch.mode == dispatch_mode::ready || c.hint == hint_quality::own ||
      c.hint == hint_quality::calm || c.hint == hint_quality::stale)
    return success();
  return job::blame(j, "dispatch.mode",
                    "expected \"ready\" with hint " + in_quotes(name(c.hint)) + ", got " +
                        in_quotes(name(j.dispatch.mode)));
}

/// Rejects a key that would have no effect: it is a mistake.
status check_used(const entry& w, const cell& c) {
  const auto& jitter = c.job.jitter;
  const std::tuple<const char*, bool, const char*> needed[] = {
      {"jitter.compute_sigma", jitter.compute != simulate::compute_jitter::none, "jitter.compute"},
      {"jitter.straggler_stage", jitter.straggler_factor != 1, "jitter.straggler_factor"},
      {"jitter.pause_stage", jitter.pause_ms != 0, "jitter.pause_ms"},
      {"jitter.slow_link_stage", jitter.slow_link_factor != 1, "jitter.slow_link_factor"}};
  for (const auto& [key, has_effect, other] : needed)
    if (w.settings.sets(key) && !has_effect)
      return job::blame(
          c.job, key,
          std::string{"expected "} + other + " as well: without it the key has no effect");
  return success();
}

status check_names(const draft& d) {
  const auto known = [&](std::string_view key, const std::string& name) -> status {
    std::vector<std::string_view> names;
    for (const auto& r : d.made.runs) names.push_back(r.name);
    if (std::ranges::find(names, name) != names.end()) return success();
    return d.head.blame(key, "expected the name of a run, got " + in_quotes(name) +
                                 job::suggestion(name, names, "there are "));
  };
  if (auto ok = known("baseline", d.made.baseline); !ok) return ok;
  for (const auto& name : d.made.ablation)
    if (auto ok = known("ablation", name); !ok) return ok;
  return success();
}

/// Checks each workload with each run and with each weather. Engines check every cell.
status validate(const draft& d) {
  const auto& e = d.made;
  if (auto ok = check_names(d); !ok) return ok;
  if (e.cells() > cells_max)
    return d.head.blame(
        "seeds", "expected workloads * weathers * runs * seeds <= " + std::to_string(cells_max) +
                     ", got " + std::to_string(e.cells()));
  for (std::size_t w = 0; w < e.workloads.size(); ++w)
    for (std::size_t k = 0; k < e.weathers.size(); ++k)
      for (std::size_t r = 0; r < (k == 0 ? e.runs.size() : 1); ++r) {
        const auto c = cell_at(e, e.first_cell(w, k, r), e.engines.back());
        if (auto ok = check_used(e.weathers[k], c); !ok) return ok;
        if (auto ok = check_cell(c); !ok) return in_cell(ok.failure(), c);
      }
  return success();
}

}  // namespace

status check_cell(const cell& c) {
  if (auto ok = job::check_job(c.job, policies::registry(), job::job_use::simulate); !ok) return ok;
  return check_measurable(c);
}

result<experiment> parse_experiment(std::string_view text, const std::string& source) {
  const auto doc = job::read_toml(text, source, kinds);
  if (!doc) return doc.failure();
  const std::filesystem::path file{source};
  draft d{{}, study::new_job(), provenance{source}};
  d.made.source = source;
  d.made.name = file.has_stem() ? file.stem().string() : "experiment";
  if (auto read = read_head(d, *doc); !read) return read.failure();
  // Table paths start with this folder, and they are written to JSON.
  if (const auto good = job::check_utf8(
          std::string_view{job::absolute_path(file.parent_path(), file.filename())});
      !good)
    return error{source + ": the path of an experiment: " + good.message()};
  if (auto read = read_entries(d, *doc); !read) return read.failure();
  if (auto valid = validate(d); !valid) return valid.failure();
  return std::move(d.made);
}

result<experiment> load_experiment(const std::string& path) {
  const auto text = io::read_text_file(path, job::job_bytes_max, "an experiment file");
  if (!text) return text.failure();
  return parse_experiment(*text, path);
}

}  // namespace rrfp::experiment
