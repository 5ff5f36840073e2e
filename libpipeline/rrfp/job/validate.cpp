#include "validate.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <rrfp/hugging_face/image_processor.hpp>
#include <rrfp/job/byte_level.hpp>
#include <rrfp/job/model_rules.hpp>
#include <rrfp/job/value.hpp>

#include "schema.hpp"

namespace rrfp::job {

namespace {

status check_shape(const job& j, const provenance& from) {
  const auto shape = effective_shape(j);
  const auto chunks = std::to_string(shape.chunks) + from.note("pipeline.chunks");
  if (shape.layout == placement::linear && shape.chunks != 1)
    return from.blame("pipeline.placement",
                      "\"linear\" expects pipeline.chunks = 1, got " + chunks);
  if (shape.layout == placement::v && shape.chunks != 2)
    return from.blame("pipeline.placement", "\"v\" expects pipeline.chunks = 2, got " + chunks);
  const auto tasks = std::uint64_t{shape.virtual_stages()} * shape.microbatches;
  if (tasks > tasks_max)
    return from.blame("pipeline.microbatches",
                      "expected stages * chunks * microbatches <= " + std::to_string(tasks_max) +
                          ", got " + std::to_string(tasks),
                      "pipeline.stages");
  return success();
}

status check_model(const job& j, const provenance& from) {
  const auto& m = j.model;
  if (const auto f = fault_of(m, effective_shape(j).virtual_stages(), j.pipeline.tp)) {
    // Too few layers for the stages is also too many stages for the layers.
    const auto other = !f->other.empty()          ? f->other
                       : f->key != "model.layers" ? f->key
                       : j.pipeline.chunks > 1    ? "pipeline.chunks"
                                                  : "pipeline.stages";
    return from.blame(f->key,
                      "expected " + f->expected + (f->other.empty() ? "" : from.note(f->other)) +
                          ", got " + f->got + from.note(f->key),
                      other);
  }
  if (j.data.sequence_length > m.context)
    return from.blame("data.sequence_length",
                      "expected at most model.context = " + std::to_string(m.context) +
                          from.note("model.context") + ", got " +
                          std::to_string(j.data.sequence_length) +
                          from.note("data.sequence_length"),
                      "model.context");
  return success();
}

status check_nodes(const job& j, const provenance& from) {
  const auto& nodes = j.pipeline.nodes;
  const auto groups = std::size_t{j.pipeline.stages} * j.pipeline.replicas;
  if (nodes.empty() || nodes.size() == groups || nodes.size() == groups * j.pipeline.tp)
    return success();
  auto expected = std::to_string(groups) + " entries (one per stage and replica)";
  if (j.pipeline.tp > 1)
    expected += " or " + std::to_string(groups * j.pipeline.tp) + " (one per rank)";
  return from.blame("pipeline.nodes",
                    "expected " + expected + ", got " + std::to_string(nodes.size()));
}

/// The node timeout spans several heartbeats, so that one late heartbeat loses no node.
status check_transport(const job& j, const provenance& from) {
  const auto& t = j.transport;
  const auto* const key = std::getenv("RRFP_KEY");
  if (!is_loopback(t.listen) && t.key_file.empty() && (key == nullptr || *key == '\0'))
    return from.blame(
        "transport.listen",
        in_quotes(t.listen) +
            " requires a key, in transport.key_file or the variable RRFP_KEY: without one, "
            "a node listens on loopback only, such as \"127.0.0.1\"");
  const auto message = j.data.microbatch_tokens() * j.model.hidden * sizeof(float);
  if (t.inflight_bytes < message)
    return from.blame("transport.inflight_bytes",
                      "expected at least the " + std::to_string(message) +
                          " bytes of an activation (" +
                          (j.data.max_tokens != 0 ? "data.max_tokens"
                                                  : "data.microbatch_size * data.sequence_length") +
                          " * model.hidden * 4), got " + std::to_string(t.inflight_bytes));
  if (t.node_timeout_ms >= 3 * t.heartbeat_ms) return success();
  return from.blame(
      "transport.node_timeout_ms",
      "expected at least 3 * transport.heartbeat_ms = " + std::to_string(3 * t.heartbeat_ms) +
          ", got " + std::to_string(t.node_timeout_ms) + from.note("transport.node_timeout_ms"),
      "transport.heartbeat_ms");
}

status check_train(const job& j, const provenance& from) {
  const auto& t = j.train;
  if (t.lr_min > t.lr)
    return from.blame("train.lr_min", "expected at most train.lr = " + number_text(t.lr) +
                                          from.note("train.lr") + ", got " + number_text(t.lr_min));
  return success();
}

/// The reason why a file or folder cannot be read; empty if it can.
std::string unreadable(const std::string& path) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) {
    const std::filesystem::directory_iterator folder{path, failed};
    return failed ? failed.message() : "";
  }
  // Opening a pipe would block until it has a writer.
  if (std::filesystem::exists(path, failed) && !std::filesystem::is_regular_file(path, failed))
    return "neither a file nor a folder";
  errno = 0;
  const std::ifstream file{path};
  if (file) return "";
  return errno != 0 ? std::strerror(errno) : "cannot be opened";
}

/// A key that provides data, and the files that it names.
struct data_kind {
  std::string key;
  bool is_given = false;
  const std::vector<std::string>* files = nullptr;
  bool is_byte_level = false;  ///< uses the ids of byte_level.hpp
  bool has_images = false;
};

/// `section`: "data", or "eval" for held-out data.
std::vector<data_kind> data_kinds(const data_options& d, const std::string& section) {
  return {{section + ".text", !d.text.empty(), &d.text},
          {section + ".jsonl", !d.jsonl.empty(), &d.jsonl, true},
          {section + ".tokens", !d.tokens.empty(), &d.tokens},
          {section + ".images", !d.images.empty(), &d.images, true, true},
          {section + ".shapes", d.shapes > 0, nullptr, true, true}};
}

status check_images(const job& j, const data_kind& given, const provenance& from) {
  const auto fits = [&](std::string_view key, const std::vector<double>& list) -> status {
    if (list.size() == 1 || list.size() == 3) return success();
    return from.blame(
        key, "expected one value or 3 (red, green, blue), got " + std::to_string(list.size()));
  };
  if (auto mean = fits("data.image_mean", j.data.image_mean); !mean) return mean;
  if (auto deviation = fits("data.image_std", j.data.image_std); !deviation) return deviation;
  if (j.data.blind && !given.has_images)
    return from.blame("data.blind", "requires data.images or data.shapes, got neither");
  const bool has_images = given.has_images && !j.data.blind;
  if (has_images && j.model.vision.layers == 0)
    return from.blame(given.key, "expected vision.layers >= 1 or data.blind = true, got neither",
                      "vision.layers");
  if (!has_images || j.model.pretrained.empty()) return success();
  if (auto same = hugging_face::check_image_processor(j.model.pretrained, j.data); !same)
    return from.blame("model.pretrained", same.message());
  return success();
}

/// Rejects bytes as tokens for a model that was trained with another tokenizer, unless the job asks
/// for them.
status check_tokenizer(const job& j, std::string_view given, const provenance& from) {
  constexpr std::string_view key = "data.tokenizer";
  if (given.ends_with(".tokens")) {
    if (!j.data.tokenizer) return success();
    return from.blame(key, "expected \"auto\" with " + std::string{given} +
                               ", which already holds tokens, got \"bytes\"");
  }
  if (j.model.pretrained.empty() || j.data.tokenizer) return success();
  return from.blame(given,
                    "expected data.tokens, made by scripts/tokenize with the tokenizer of "
                    "model.pretrained, got " +
                        std::string{given} +
                        ", whose bytes would be the tokens; set data.tokenizer = \"bytes\" to "
                        "train on bytes",
                    "model.pretrained");
}

status check_source(const job& j, const data_options& d, const std::string& section,
                    const provenance& from) {
  const data_kind* given = nullptr;
  const auto kinds = data_kinds(d, section);
  for (const auto& kind : kinds) {
    if (!kind.is_given) continue;
    if (given != nullptr)
      return from.blame(kind.key, "expected one kind of data, got " + given->key + " as well");
    given = &kind;
  }
  if (given == nullptr)
    return from.blame("data.text",
                      "expected data.text, or else data.jsonl, data.tokens, data.images or "
                      "data.shapes, got none");
  if (given->key == "data.text" && d.pack == sample_packing::cost)
    return from.blame("data.pack",
                      "\"cost\" expects data.jsonl, data.tokens, data.images or data.shapes, whose "
                      "sequences differ in length, got data.text",
                      given->key);
  if (auto tokens = check_tokenizer(j, given->key, from); !tokens) return tokens;
  if (given->is_byte_level && j.model.vocabulary < byte_level::vocabulary)
    return from.blame("model.vocabulary",
                      "expected at least " + std::to_string(byte_level::vocabulary) +
                          " (256 byte values, the image token and the end token) with " +
                          given->key + ", got " + std::to_string(j.model.vocabulary) +
                          from.note("model.vocabulary"),
                      given->key);
  if (given->files != nullptr)
    for (const auto& path : *given->files)
      if (const auto why = unreadable(path); !why.empty())
        return from.blame(given->key, "cannot read " + path + ": " + why);
  return check_images(j, *given, from);
}

status check_max_tokens(const job& j, const provenance& from) {
  const auto most = j.data.max_tokens;
  if (most == 0 && j.data.pack_delay != 0)
    return from.blame(
        "data.pack_delay",
        "expected 0 without data.max_tokens, got " + std::to_string(j.data.pack_delay),
        "data.max_tokens");
  if (most == 0) return success();
  const auto refused = [&](const std::string& expected, std::string_view other) {
    return from.blame("data.max_tokens", "expected " + expected + ", got " + std::to_string(most),
                      other);
  };
  if (j.data.pack != sample_packing::cost)
    return refused("0 without data.pack = \"cost\"", "data.pack");
  if (most < j.data.sequence_length)
    return refused("at least data.sequence_length = " + std::to_string(j.data.sequence_length) +
                       from.note("data.sequence_length"),
                   "data.sequence_length");
  if (j.device.kind == device_kind::emulated)
    return refused("0 with device.kind = \"emulated\", which reads no data", "device.kind");
  // A step may have as many microbatches as sequences.
  const auto sequences = std::uint64_t{j.pipeline.microbatches} * j.data.microbatch_size;
  if (sequences <= microbatches_max) return success();
  return from.blame("data.microbatch_size",
                    "expected pipeline.microbatches * data.microbatch_size <= " +
                        std::to_string(microbatches_max) + " with data.max_tokens, got " +
                        std::to_string(sequences),
                    "pipeline.microbatches");
}

status check_data(const job& j, const provenance& from) {
  if (auto limit = check_max_tokens(j, from); !limit) return limit;
  if (j.device.kind == device_kind::emulated) return success();  // reads no data
  if (auto valid = check_source(j, j.data, "data", from); !valid) return valid;
  const auto held_out = held_out_data(j);
  return held_out ? check_source(j, *held_out, "eval", from) : success();
}

status check_checkpoint(const job& j, const provenance& from) {
  const auto& dir = j.checkpoint.dir;
  if (dir.empty()) {
    if (j.checkpoint.resume != resume_kind::must) return success();
    return from.blame("checkpoint.resume", "\"must\" expects checkpoint.dir, got none");
  }
  if (j.device.kind == device_kind::emulated)
    return from.blame("checkpoint.dir",
                      "expected none with device.kind = \"emulated\", which computes nothing that "
                      "could be saved, got " +
                          in_quotes(dir),
                      "device.kind");
  std::error_code failed;
  if (std::filesystem::exists(dir, failed) && !std::filesystem::is_directory(dir, failed))
    return from.blame("checkpoint.dir", "expected a folder, got the file " + in_quotes(dir));
  return success();
}

/// `word` of `key` needs replicas that can run each other's microbatches.
status check_sharing(std::string_view key, const std::string& word, const job& j,
                     const provenance& from) {
  if (j.pipeline.replicas > 1) return success();
  return from.blame(key, in_quotes(word) + " expects pipeline.replicas of at least 2, got 1",
                    "pipeline.replicas");
}

status check_recovery(const job& j, const provenance& from) {
  const auto needs_restarts = [&](std::string_view key, const char* what) {
    return from.blame(key, std::string{what} + " recovery.max_restarts of at least 1, got 0",
                      "recovery.max_restarts");
  };
  const bool reroutes = j.recovery.without_replacement == loss_kind::reroute;
  constexpr auto key = "recovery.without_replacement";
  if (reroutes)
    if (auto fits = check_sharing(key, "reroute", j, from); !fits) return fits;
  if (j.recovery.max_restarts > 0) return success();
  if (reroutes) return needs_restarts(key, "\"reroute\" expects");
  return j.recovery.spares > 0 ? needs_restarts("recovery.spares", "spare nodes expect")
                               : success();
}

status check_shares(const job& j, const provenance& from) {
  if (j.pipeline.shares == share_kind::equal) return success();
  return check_sharing("pipeline.shares", "measured", j, from);
}

status check_jitter(const job& j, const provenance& from) {
  const auto& c = j.jitter;
  if (c.straggler_factor != 1)
    if (auto ok = check_stage("jitter.straggler_stage", c.straggler_stage, j.pipeline.stages, from);
        !ok)
      return ok;
  if (j.jitter.link != simulate::link_jitter::none && j.jitter.link_mean_ms == 0)
    return from.blame(
        "jitter.link_mean_ms",
        "expected a number > 0 with jitter.link, got 0" + from.note("jitter.link_mean_ms"),
        "jitter.link");
  return success();
}

status check_delays(const job& j, const provenance& from) {
  const auto& file = j.delays.file;
  if (file.empty()) return success();
  std::error_code failed;
  const auto why = std::filesystem::is_directory(file, failed) ? "a folder" : unreadable(file);
  if (why.empty()) return success();
  return from.blame("jitter.delays", "cannot read " + file + ": " + why);
}

status check_fed(const job& j, const provenance& from) {
  if (j.pipeline.cuts.kind != cut_kind::automatic)
    return from.blame("pipeline.cuts", "expected \"auto\" for the modules of a program");
  if (has_layer_times(j))
    return from.blame("cost.forward_ms",
                      "expected one value, or one per stage or virtual stage, for the modules of a "
                      "program, got " +
                          std::to_string(j.cost.forward_ms.size()),
                      "cost.profile");
  if (j.dispatch.early_forwards != 0)
    return from.blame("dispatch.early_forwards", "expected 0 for the modules of a program, got " +
                                                     std::to_string(j.dispatch.early_forwards));
  if (j.dispatch.admit == admission::loaded) return success();
  return from.blame("dispatch.admission", "expected \"loaded\" for the batches of a program, got " +
                                              in_quotes(name(j.dispatch.admit)));
}

}  // namespace

status check_stage(std::string_view key, std::uint32_t stage, std::uint32_t end,
                   const provenance& from) {
  if (stage < end) return success();
  return from.blame(key,
                    "expected a stage below " + std::to_string(end) + ", got " +
                        std::to_string(stage) + from.note(key),
                    "pipeline.stages");
}

status validate(const job& j, const provenance& from, const policy_registry& policies,
                job_use use) {
  using check = status (*)(const job&, const provenance&);
  for (const check holds : {check_shape, check_nodes, check_transport, check_train, check_jitter,
                            check_delays, check_costs, check_shares, check_recovery})
    if (auto held = holds(j, from); !held) return held;
  if (auto dispatch = check_dispatch(j, from, policies); !dispatch) return dispatch;
  if (use == job_use::simulate) return success();
  if (use == job_use::embed) {
    if (auto fed = check_fed(j, from); !fed) return fed;
    return check_checkpoint(j, from);
  }
  if (auto model = check_model(j, from); !model) return model;
  if (auto checkpoint = check_checkpoint(j, from); !checkpoint) return checkpoint;
  return check_data(j, from);
}

}  // namespace rrfp::job
