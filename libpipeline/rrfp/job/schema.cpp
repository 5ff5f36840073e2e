#include "schema_parts.hpp"

#include <algorithm>
#include <utility>

#include <rrfp/base/check.hpp>

namespace rrfp::job {

namespace {

constexpr std::int64_t bytes_max = std::int64_t{1} << 50;

void add_name(std::vector<key>& table) {
  section_keys<job> keys{table, "", [](job& j) -> job& { return j; }};
  keys.text("name", &job::name, path_rule::none, "text",
            "Name of the job in reports; default: the name of the file.");
}

const words cut_kinds{"auto", "layers", "cost"};

status set_cuts(job& j, const value& v) {
  auto& cuts = j.pipeline.cuts;
  if (std::holds_alternative<value_list>(v.data)) {
    auto counts = read_integers(v, {1, 65536});
    if (!counts) return counts.failure();
    if (!counts->empty()) {
      cuts = {cut_kind::given, std::move(*counts)};
      return success();
    }
  }
  const auto word = read_word(v, cut_kinds);
  if (!word)
    return error{"expected \"auto\", \"layers\", \"cost\" or an array of integers >= 1, got " +
                 describe(v)};
  cuts = {static_cast<cut_kind>(*word), {}};
  return success();
}

value cuts_of(const job& j) {
  const auto& cuts = j.pipeline.cuts;
  if (cuts.kind != cut_kind::given)
    return {std::string{cut_kinds[static_cast<std::size_t>(cuts.kind)]}};
  return to_list(std::vector<std::int64_t>(cuts.layers.begin(), cuts.layers.end()));
}

void add_cuts(std::vector<key>& table) {
  table.push_back(
      {"pipeline.cuts", type_name(cut_kinds) + ", or an array of integer, 1 to 65536", "layers",
       "Division of the layers, the encoder's first, into the parts of the pipeline. `layers`: "
       "evenly, as `auto` does. `cost`: such that the slowest part takes the least time, with the "
       "times of [cost] by layer and `cost.speed`. An array: the number of layers of each part. "
       "The projector, the embedding and the head come on top of the layers beside them.",
       true, path_rule::none, set_cuts, cuts_of});
}

void add_pipeline(std::vector<key>& table) {
  section_keys<pipeline_options> keys{table, "pipeline", &job::pipeline};
  using o = pipeline_options;
  keys.integer("stages", &o::stages, {1, 1024}, "", "Number of physical stages.");
  keys.integer("chunks", &o::chunks, {1, 64}, "", "Number of model parts on each stage.");
  keys.choice(
      "placement", &o::layout,
      {name(placement::linear), name(placement::interleaved), name(placement::v)},
      "Placement of the parts of the model on p stages. `linear`: one chunk per stage, in the "
      "order of the stages; `interleaved`: chunk c of stage s is part c * p + s; `v`: two "
      "chunks, the second in reverse order; `auto`: `linear` with one chunk, else "
      "`interleaved`.");
  add_cuts(table);
  keys.integer("microbatches", &o::microbatches, {1, microbatches_max}, "",
               "Number of microbatches in a step.");
  keys.integer("tp", &o::tp, {1, 64}, "", "Number of tensor-parallel ranks per stage.");
  keys.integer("replicas", &o::replicas, {1, 1024}, "",
               "Number of data-parallel copies of the pipeline, each with its own `microbatches`.");
  keys.choice("shares", &o::shares, {"equal", "measured"},
              "`equal`: each replica runs its own microbatches; `measured`: the others run some of "
              "those of a slow one, with equal results.");
  keys.boolean(
      "recompute", &o::recompute,
      "Discard activations after F and recompute them for B: less memory, one more forward. Where "
      "a policy splits the backward, a microbatch holds them again from B to W.");
  keys.integers(
      "nodes", &o::nodes, {0, 1023},
      "Node that hosts each stage (replica by replica) or each rank; empty: an even split.");
}

void add_dispatch(std::vector<key>& table) {
  section_keys<dispatch_options> keys{table, "dispatch", &job::dispatch};
  using o = dispatch_options;
  keys.choice("mode", &o::mode, {name(dispatch_mode::in_order), name(dispatch_mode::ready)},
              "`ready`: run the best-ranked ready task; `in-order`: follow the policy's sequence "
              "and wait for each task.");
  keys.text("policy", &o::policy, path_rule::policy_file,
            "a policy, `table:FILE.csv` or `lib:FILE.so`",
            "Policy that ranks the ready tasks (the hint) or, in mode `in-order`, gives "
            "their sequence; `rrfp-node policies` lists all.");
  keys.integer("lookahead", &o::lookahead, {0, 64}, "launches",
               "Maximum number of launches queued behind the running one.");
  keys.limit("slots", &o::slots, {1, 65536}, {"auto", "none", "1f1b", "p"},
             {std::nullopt, 0U, slots_of_1f1b, slots_of_stages}, "microbatches",
             "Maximum number of microbatches that may hold activations on a stage; `auto`: 2 * "
             "stages in mode `ready`, `none` in mode `in-order`; "
             "`1f1b`: p - s on stage s of p, as 1F1B holds; `p`: p on every stage.");
  keys.choice(
      "slot_unit", &o::slot_unit, {"microbatch", "chunk"},
      "What a slot holds. `microbatch`: a microbatch on all chunks of the stage; `chunk`: a "
      "microbatch on one chunk, with `slots` times the chunks of the stage as the limit.");
  keys.bytes("slot_bytes", &o::slot_bytes, bytes_max,
             "Maximum bytes that all microbatches together may hold on a stage; 0: no limit.");
  keys.integer("early_forwards", &o::early_forwards, {0, 65536}, "forwards",
               "Mode `ready`: maximum number of microbatches whose F a stage may run before "
               "they have a slot, while it has no other task. The next stage gets the output; F "
               "runs again when a slot is free.");
  keys.limit("weight_pieces", &o::weight_pieces, {1, weight_pieces_max}, {"auto"}, {std::nullopt},
             "launches",
             "Number of launches into which each W is divided in mode `ready`, so that a B "
             "that becomes ready waits only for a part of W. `auto`: 4 with policy "
             "`bfw_plus`, 1 with the others; fewer if the launches would take more than 2 % "
             "of W.");
  keys.choice("admission", &o::admit, {name(admission::loaded), name(admission::small_large_small)},
              "Order in which the first stage admits the microbatches of a step. `loaded`: the "
              "order of the data; `small_large_small`: the cheapest first and last, the most "
              "expensive in the middle.");
}

void add_device(std::vector<key>& table) {
  section_keys<device_options> keys{table, "device", &job::device};
  using o = device_options;
  keys.choice("kind", &o::kind, {"cpu", "cuda", "emulated"},
              "`cpu`; `cuda`: NVIDIA GPUs; `emulated`: tasks take the times of [cost] and compute "
              "nothing.");
  keys.number("time_scale", &o::time_scale, {0.001, 1000}, "",
              "Emulated: factor on the times of [cost] and [jitter]; 2 takes twice as long.");
  keys.bytes("message_bytes", &o::message_bytes, bytes_max,
             "Emulated: size of a message between stages; 0: the size that the model would send.");
  section_keys<cuda_options> cuda{table, "device", &job::cuda};
  using c = cuda_options;
  cuda.integers("gpus", &c::gpus, {0, 255},
                "CUDA: numbers of the devices that the ranks of a machine share; empty: all.");
  cuda.boolean("deterministic", &c::deterministic,
               "CUDA: equal runs give equal bits; some kernels are slower.");
  cuda.choice("collectives", &c::collectives, {"nccl", "host"},
              "CUDA: how ranks sum; `host`: through host memory; `auto`: `nccl` if every rank has "
              "its own device.");
}

void add_transport(std::vector<key>& table) {
  section_keys<transport_options> keys{table, "transport", &job::transport};
  using o = transport_options;
  keys.text("listen", &o::listen, path_rule::none, "an address or host name",
            "Address on which this node listens; other nodes must be able to reach it. Any address "
            "except loopback requires a key.");
  keys.optional_text("key_file", &o::key_file, path_rule::files, "a file, or nothing",
                     "File with the shared key of the job, at least 16 bytes, readable only by its "
                     "owner. The key itself is never sent. Without a file, the variable `RRFP_KEY` "
                     "of the environment holds "
                     "the key; without both, on loopback, each run has a key of its own.");
  keys.text("tls", &o::tls, path_rule::none, "a list as in UCX_TLS",
            "Transports that UCX may use (UCX's abbreviation tls has nothing to do with "
            "encryption); `auto`: all but `tcp` if every node is on loopback, else all.");
  keys.bytes("inflight_bytes", &o::inflight_bytes, bytes_max,
             "Maximum bytes of large tensors that a node fetches at the same time.");
  keys.integer("heartbeat_ms", &o::heartbeat_ms, {1, 60000}, "ms",
               "Interval between heartbeats of a node.");
  keys.integer(
      "node_timeout_ms", &o::node_timeout_ms, {3, 600000}, "ms",
      "Time without a heartbeat after which a node counts as lost. A node whose connection "
      "closes counts as lost at once.");
  keys.number("join_timeout_s", &o::join_timeout_s, {0.01, 86400}, "s",
              "Maximum time that nodes wait for each other at the start.");
}

void add_checkpoint(std::vector<key>& table) {
  section_keys<checkpoint_options> keys{table, "checkpoint", &job::checkpoint};
  using o = checkpoint_options;
  keys.optional_text("dir", &o::dir, path_rule::files, "a folder, or nothing",
                     "Folder for checkpoints, shared by all nodes; none: no checkpoints. Each run "
                     "of a comparison gets its own subfolder.");
  keys.integer(
      "every", &o::every, {0, count_max}, "steps",
      "Number of steps between checkpoints; 0: only at the end or when the run is interrupted.");
  keys.integer("keep", &o::keep, {1, 1000}, "",
               "Number of checkpoints to keep; older ones are deleted after each save.");
  keys.choice("resume", &o::resume, {"auto", "never", "must"},
              "`auto`: resume from the newest checkpoint in `dir`, if there is one; `must`: "
              "require one; `never`: start from scratch and set older checkpoints aside.");
}

void add_recovery(std::vector<key>& table) {
  section_keys<recovery_options> keys{table, "recovery", &job::recovery};
  using o = recovery_options;
  keys.integer("max_restarts", &o::max_restarts, {0, 1'000'000}, "",
               "Number of losses and drains of nodes that the job survives: it waits until the "
               "node has been started again, and resumes. 0: the first loss ends the job.");
  keys.integer(
      "every", &o::every, {1, count_max}, "steps",
      "Number of steps between two copies of the state in the memory of the nodes. After a "
      "loss the job resumes from the newest one.");
  keys.number("hold_s", &o::hold_s, {0.1, 86400}, "s",
              "Maximum time that the other nodes wait for the replacement of a lost one.");
  keys.choice(
      "without_replacement", &o::without_replacement, {"wait", "reroute"},
      "`wait`: the others wait for the replacement of a lost node; `reroute`: they go on at "
      "once, with equal results; the nodes of other replicas compute the ranks of the lost "
      "one, until a replacement has come.");
  keys.integer("spares", &o::spares, {0, 4096}, "",
               "Number of spare nodes, among those that are started: the last ones. A spare "
               "holds copies of the state, and takes the place of a lost node at once.");
}

void add_run(std::vector<key>& table) {
  section_keys<run_options> keys{table, "run", &job::run};
  using o = run_options;
  keys.number("hang_timeout_s", &o::hang_timeout_s, {0, 86400}, "s",
              "Time without progress after which the run ends with a hang report; 0: never.");
  keys.choice("progress", &o::progress, {"auto", "lines", "none"},
              "`auto`: live progress on a terminal, plain lines elsewhere; `lines`: plain "
              "lines; `none`: no progress.");
  keys.integer("spin_us", &o::spin_us, {0, 1'000'000}, "us",
               "Time for which idle ranks and stages poll for work before they sleep: faster, but "
               "it occupies cores. For machines with spare cores.");
}

std::vector<key> make_keys() {
  std::vector<key> table;
  add_name(table);
  add_pipeline(table);
  add_dispatch(table);
  add_training_keys(table);
  add_weather_keys(table);
  add_cost_keys(table);
  add_device(table);
  add_transport(table);
  add_checkpoint(table);
  add_recovery(table);
  add_run(table);
  return table;
}

std::vector<section_info> make_sections() {
  return {
      {"pipeline", "The shape of the pipeline."},
      {"dispatch", "The choice of the next task on a stage, and its memory limits."},
      {"model", "The decoder."},
      {"vision", "The vision transformer in front of the decoder."},
      {"data", "The training data: text, tokens, or text with images."},
      {"eval", "Held-out data, and when to evaluate on it."},
      {"train", "The optimizer and the learning rate."},
      {"jitter", "Artificial delays, the same in every mode."},
      {"cost", "Expected task durations, used by simulations and as the scale of jitter."},
      {"device", "The device of a rank."},
      {"transport", "Communication between the nodes of a job."},
      {"checkpoint", "Saving the state on disk, and resuming from there."},
      {"recovery", "Resuming in place after the loss of a node."},
      {"run", "Progress output and hang detection."},
  };
}

/// Inserts a key behind the others of its section.
void add(std::vector<key>& table, key more) {
  const auto last = std::find_if(table.rbegin(), table.rend(),
                                 [&](const auto& k) { return k.section() == more.section(); });
  table.insert(last == table.rend() ? table.end() : last.base(), std::move(more));
}

}  // namespace

schema::schema(std::unique_ptr<const extension> more)
    : table_{"a job", make_sections(), make_keys()}, more_(std::move(more)) {
  if (more_ == nullptr) return;
  for (const auto& s : more_->sections()) table_.sections.push_back(s);
  for (auto& k : more_->keys()) add(table_.keys, std::move(k));
}

job schema::defaults() const {
  job made;
  if (more_ == nullptr) return made;
  made.read_with = this;
  made.extra = more_->defaults();
  return made;
}

const schema& runtime_schema() {
  static const schema all{nullptr};
  return all;
}

const schema& schema_of(const job& j) {
  return j.read_with != nullptr ? *j.read_with : runtime_schema();
}

bool has_other_costs(const job& j) {
  const auto* more = schema_of(j).more();
  return more != nullptr && more->replaces_costs(j);
}

}  // namespace rrfp::job
