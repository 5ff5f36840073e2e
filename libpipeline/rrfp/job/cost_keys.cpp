/// The keys of [cost] and of the sections that describe a preset.
#include <rrfp/workload/presets.hpp>

#include "schema.hpp"

namespace rrfp::job {

namespace {

void add_cost(std::vector<key>& table) {
  section_keys<cost_options> keys{table, "cost", &job::cost};
  using o = cost_options;
  words presets{"none"};
  const auto known = workload::preset_names();
  presets.insert(presets.end(), known.begin(), known.end());
  keys.name_of("preset", &o::preset, presets,
               "A model whose times and bytes on [machine] replace the times below. It describes "
               "simulations and emulated devices, whatever [model] trains; stages have one chunk.");
  keys.integer("samples", &o::samples, {1, 64}, "", "Preset: number of samples in a microbatch.");
  keys.integer(
      "sequence_tokens", &o::sequence_tokens, {0, 1 << 20}, "tokens",
      "Preset: decoder tokens per sample; 0: the preset's value. A sample of a model with learned "
      "positions always fills its context.");
  keys.boolean(
      "shape_messages", &o::shape_messages,
      "Preset: if `dispatch.messages` is `blocking` and samples differ in images or length, an "
      "empty message with the shape precedes each message.");
  table.push_back({"cost.profile",
                   "a file",
                   "",
                   "File with the times of [cost], as `rrfp-report --profile FILE.toml` writes it; "
                   "the keys below override it.",
                   true,
                   path_rule::files,
                   [](job& j, const value& v) -> status {
                     const auto path = read_text(v);
                     if (!path) return path.failure();
                     const auto times = read_profile(*path);
                     if (!times) return times.failure();
                     for (const auto& t : *times)
                       if (auto set = find_key(t.key)->set(j, *read_value(t.value)); !set)
                         return set;
                     return success();
                   },
                   {}});
  keys.numbers("forward_ms", &o::forward_ms, {0, ms_max}, "ms",
               "Duration of the forward of a microbatch; one value, one per stage, one per "
               "virtual stage, or one per layer, with the embedding and the head in the first and "
               "the last one.");
  keys.numbers("backward_ms", &o::backward_ms, {0, ms_max}, "ms",
               "Duration of the input gradient alone; values as for `forward_ms`.");
  keys.numbers("weight_ms", &o::weight_ms, {0, ms_max}, "ms",
               "Duration of the weight gradient alone; values as for `forward_ms`.");
  keys.number("link_ms", &o::link_ms, {0, ms_max}, "ms",
              "Time from the end of a task to the arrival of its result.");
  keys.numbers("speed", &o::speed, {0, 1e6, true, false}, "",
               "Speed of the device of each stage, or of all; it divides the expected task times, "
               "those above or those of the preset.");
}

void add_machine(std::vector<key>& table) {
  section_keys<workload::machine> keys{table, "machine", &job::machine};
  using o = workload::machine;
  const number_range rate{0, 1e9, true, false};
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
  keys.number("layer_us", &o::layer_us, {0, ms_max}, "us",
              "Time that a layer takes in each of F, B and W whatever its size: launches and small "
              "kernels.");
}

void add_images(std::vector<key>& table) {
  using workload::image_spread;
  section_keys<workload::image_counts> keys{table, "images", &job::images};
  using o = workload::image_counts;
  keys.choice(
      "spread", &o::spread,
      {name(image_spread::fixed), name(image_spread::uniform), name(image_spread::geometric)},
      "Distribution of the number of images in a sample.");
  keys.number("mean", &o::mean, {0, workload::images_max / 2.0}, "images",
              "Mean number of images in a sample, before the cut at `most`.");
  keys.integer("most", &o::most, {0, workload::images_max}, "images",
               "Maximum number of images in a sample.");
}

status set_histogram(job& j, const value& v) {
  auto& texts = j.texts;
  texts.bins.clear();
  texts.histogram.clear();
  if (const auto* text = std::get_if<std::string>(&v.data); text != nullptr && text->empty())
    return success();
  const auto path = read_text(v);
  if (!path) return path.failure();
  auto bins = workload::read_histogram(*path);
  if (!bins) return bins.failure();
  texts.bins = std::move(*bins);
  texts.histogram = *path;
  return success();
}

void add_texts(std::vector<key>& table) {
  using workload::text_spread;
  section_keys<workload::text_options> keys{table, "texts", &job::texts};
  using o = workload::text_options;
  keys.choice(
      "spread", &o::spread,
      {name(text_spread::padded), name(text_spread::uniform), name(text_spread::histogram)},
      "Distribution of the number of text tokens in a sample. `padded`: every sample, with its "
      "images, has `cost.sequence_tokens`. Otherwise it has the tokens of its text and of its "
      "images. `uniform`: 1 to 2 * `mean` - 1; `histogram`: as often as the file says.");
  keys.number("mean", &o::mean, {1, workload::text_tokens_max / 2.0}, "tokens",
              "uniform: mean number of text tokens, before the cut at `most`.");
  keys.integer("most", &o::most, {1, workload::text_tokens_max}, "tokens",
               "Maximum number of text tokens in a sample; longer texts are cut.");
  table.push_back({"texts.histogram", "a file, or nothing", "",
                   "histogram: CSV file with columns tokens,count: for each length, in increasing "
                   "order, the number of texts that have it.",
                   true, path_rule::files, set_histogram,
                   [](const job& j) { return value{j.texts.histogram}; }});
}

void add_experts(std::vector<key>& table) {
  using workload::expert_spread;
  section_keys<workload::expert_options> keys{table, "experts", &job::experts};
  using o = workload::expert_options;
  keys.choice(
      "spread", &o::spread, {name(expert_spread::even), name(expert_spread::dirichlet)},
      "Distribution of the tokens over the experts of a layer, for each microbatch. `even`: "
      "the same number for each; `dirichlet`: shares from a symmetric Dirichlet "
      "distribution.");
  keys.number("concentration", &o::concentration, {0.01, 1e6}, "",
              "dirichlet: the larger, the more even. An assumption, not a measurement: with 10 "
              "the busiest of 8 experts gets 1.5 times the mean, and of 128 experts 2.0 times.");
}

}  // namespace

void add_cost_keys(std::vector<key>& table) {
  add_cost(table);
  add_machine(table);
  add_images(table);
  add_texts(table);
  add_experts(table);
}

}  // namespace rrfp::job
