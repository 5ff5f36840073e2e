#include "keys.hpp"

#include <rrfp/study/options.hpp>
#include <rrfp/study/presets.hpp>

namespace rrfp::study {

namespace {

template <class Section>
auto section_of(Section options::*section) {
  return [section](job::job& j) -> Section& { return options_of(j).*section; };
}

void add_dispatch(std::vector<job::key>& table) {
  job::section_keys<dispatch_options> keys{table, "dispatch", section_of(&options::dispatch)};
  using o = dispatch_options;
  keys.choice(
      "messages", &o::messages, {"asynchronous", "blocking"},
      "`blocking`: a stage posts its send together with its next receive and waits until its "
      "result was received, as frameworks with fixed schedules do. Requires mode `in-order` "
      "without `lookahead`.");
  keys.integer("run_ahead", &o::run_ahead, {0, 65536}, "forwards",
               "The paper's back-pressure, in place of `slots` and `slot_bytes`: a stage that "
               "has run this many more F than B runs no further F; with several chunks, only "
               "the oldest unfinished microbatch continues on it. Postponed W do not count. 0: "
               "no limit. With it, `slots` = `auto` is `none`.");
}

/// Of the network that the paper measured, and of single faults.
void add_jitter(std::vector<job::key>& table) {
  job::section_keys<simulate::conditions> keys{table, "jitter", &job::job::jitter};
  using o = simulate::conditions;
  keys.number("stall_probability", &o::stall_probability, {0, 1}, "",
              "stalls: share of messages that stall.");
  keys.number("stall_factor", &o::stall_factor, {0, 1e6}, "",
              "stalls: minimum extra time, in multiples of the message's own time.");
  keys.number("stall_alpha", &o::stall_alpha, {1, 1e6}, "",
              "stalls: tail index of the extra time.");
  keys.number("stall_unit_ms", &o::stall_unit_ms, {0, job::ms_max}, "ms",
              "stalls: unit of the extra time, in place of the message's own time; 0: the "
              "message's own time.");
  keys.integer("pause_stage", &o::pause_stage, {0, 1023}, "",
               "Stage of which one rank pauses once per step.");
  keys.number("pause_ms", &o::pause_ms, {0, job::ms_max}, "ms",
              "Length of the pause; 0: no pause.");
  keys.integer("slow_link_stage", &o::slow_link_stage, {0, 1023}, "",
               "Stage whose messages to and from the next stage are slow.");
  keys.number("slow_link_factor", &o::slow_link_factor, {0, 1e6}, "",
              "Factor on the time of those messages; 1: no slow link.");
  keys.number("loss_probability", &o::loss_probability, {0, simulate::loss_probability_max}, "",
              "Probability that an attempt to send a message is lost: the message is then "
              "`resend_ms` late, or more if further attempts are lost.");
  keys.number("resend_ms", &o::resend_ms, {1e-3, job::ms_max}, "ms",
              "Time after which a lost message is sent again.");
}

void add_cost(std::vector<job::key>& table) {
  job::section_keys<cost_options> keys{table, "cost", section_of(&options::cost)};
  using o = cost_options;
  job::words presets{"none"};
  const auto known = preset_names();
  presets.insert(presets.end(), known.begin(), known.end());
  keys.name_of("preset", &o::preset, presets,
               "A model whose times and bytes on [machine] replace the times above. It describes "
               "simulations and emulated devices, whatever [model] trains; stages have one chunk. "
               "`cost.speed` divides its times, and `jitter.seed` is also the seed of its images, "
               "texts and loads of experts. "
               "`pipeline.cuts` divides its layers; `auto` means `cost`, which also moves the "
               "projector, the embedding and the head.");
  keys.integer("samples", &o::samples, {1, 64}, "", "Preset: number of samples in a microbatch.");
  keys.integer(
      "sequence_tokens", &o::sequence_tokens, {0, 1 << 20}, "tokens",
      "Preset: decoder tokens per sample; 0: the preset's value. A sample of a model with learned "
      "positions always fills its context.");
  keys.boolean(
      "shape_messages", &o::shape_messages,
      "Preset: if `dispatch.messages` is `blocking` and samples differ in images or length, an "
      "empty message with the shape precedes each message.");
}

void add_machine(std::vector<job::key>& table) {
  job::section_keys<machine> keys{table, "machine", section_of(&options::machine)};
  using o = machine;
  const job::number_range rate{0, 1e9, true, false};
  keys.number("tflops", &o::tflops, rate, "TFLOP/s", "Peak throughput of a device.");
  keys.number("memory_gb_s", &o::memory_gb_s, rate, "GB/s", "Memory bandwidth of a device.");
  keys.number("memory_gib", &o::memory_gib, {0, 1e6}, "GiB", "Memory of a device.");
  keys.integer("group", &o::group, {1, 4096}, "devices", "Number of devices on a node.");
  keys.number("within_gb_s", &o::within_gb_s, rate, "GB/s", "Bandwidth between devices of a node.");
  keys.number("within_us", &o::within_us, {0, job::ms_max}, "us",
              "Latency between devices of a node.");
  keys.number("between_gb_s", &o::between_gb_s, rate, "GB/s",
              "Bandwidth of a node's network adapter.");
  keys.number("between_us", &o::between_us, {0, job::ms_max}, "us", "Latency between nodes.");
  keys.number("efficiency", &o::efficiency, {0, 1, true, false}, "",
              "Share of the peaks that kernels reach.");
  keys.number("layer_us", &o::layer_us, {0, job::ms_max}, "us",
              "Time that a layer takes in each of F, B and W whatever its size: launches and small "
              "kernels.");
}

void add_images(std::vector<job::key>& table) {
  job::section_keys<image_counts> keys{table, "images", section_of(&options::images)};
  using o = image_counts;
  keys.choice("spread", &o::spread, {std::begin(image_spreads), std::end(image_spreads)},
              "Distribution of the number of images in a sample.");
  keys.number("mean", &o::mean, {0, images_max / 2.0}, "images",
              "Mean number of images in a sample, before the cut at `most`.");
  keys.integer("most", &o::most, {0, images_max}, "images",
               "Maximum number of images in a sample.");
}

status set_histogram(job::job& j, const job::value& v) {
  auto& texts = options_of(j).texts;
  texts.bins.clear();
  texts.histogram.clear();
  if (const auto* text = std::get_if<std::string>(&v.data); text != nullptr && text->empty())
    return success();
  const auto path = job::read_text(v);
  if (!path) return path.failure();
  auto bins = read_histogram(*path);
  if (!bins) return bins.failure();
  texts.bins = std::move(*bins);
  texts.histogram = *path;
  return success();
}

void add_texts(std::vector<job::key>& table) {
  job::section_keys<text_options> keys{table, "texts", section_of(&options::texts)};
  using o = text_options;
  keys.choice(
      "spread", &o::spread, {std::begin(text_spreads), std::end(text_spreads)},
      "Distribution of the number of text tokens in a sample. `padded`: every sample, with its "
      "images, has `cost.sequence_tokens`. Otherwise it has the tokens of its text and of its "
      "images. `uniform`: 1 to 2 * `mean` - 1; `histogram`: as often as the file says.");
  keys.number("mean", &o::mean, {1, text_tokens_max / 2.0}, "tokens",
              "uniform: mean number of text tokens, before the cut at `most`.");
  keys.integer("most", &o::most, {1, text_tokens_max}, "tokens",
               "Maximum number of text tokens in a sample; longer texts are cut.");
  table.push_back({"texts.histogram", "a file, or nothing", "",
                   "histogram: CSV file with columns tokens,count: for each length, in increasing "
                   "order, the number of texts that have it.",
                   true, job::path_rule::files, set_histogram,
                   [](const job::job& j) { return job::value{options_of(j).texts.histogram}; }});
}

void add_experts(std::vector<job::key>& table) {
  job::section_keys<expert_options> keys{table, "experts", section_of(&options::experts)};
  using o = expert_options;
  keys.choice(
      "spread", &o::spread, {std::begin(expert_spreads), std::end(expert_spreads)},
      "Distribution of the tokens over the experts of a layer, for each microbatch. `even`: "
      "the same number for each; `dirichlet`: shares from a symmetric Dirichlet "
      "distribution.");
  keys.number("concentration", &o::concentration, {0.01, 1e6}, "",
              "dirichlet: its concentration; larger is more even. An assumption, not a "
              "measurement: with 10 "
              "the busiest of 8 experts gets 1.5 times the mean, and of 128 experts 2.0 times.");
}

}  // namespace

std::vector<job::key> keys() {
  std::vector<job::key> table;
  for (auto* const add :
       {add_dispatch, add_jitter, add_cost, add_machine, add_images, add_texts, add_experts})
    add(table);
  return table;
}

}  // namespace rrfp::study
