#include <rrfp/base/printable.hpp>
#include <rrfp/job/job_template.hpp>

#include <rrfp/base/check.hpp>
#include <rrfp/job/value.hpp>

#include "schema.hpp"

namespace rrfp::job {

namespace {

constexpr std::size_t columns = 100;

struct line {
  std::string key;
  /// As TOML.
  std::string value;
  /// Whether the line is commented out, as an option for the user.
  bool is_off = false;
};

std::string comment(const std::string& text) { return wrapped(text, "# ", columns); }

std::string list_of(const std::vector<std::string>& texts) {
  std::string out;
  for (const auto& t : texts) out += (out.empty() ? "" : ", ") + in_quotes(t);
  return "[" + out + "]";
}

/// The title comment of the file, and its keys in the order of the reference.
struct content {
  std::string title;
  std::vector<line> lines;
};

content text_job(const template_request& wanted) {
  const bool documents = wanted.documents;
  const auto data =
      wanted.data.empty() ? std::vector<std::string>{"/usr/share/common-licenses"} : wanted.data;
  return {"Trains a small language model on the bytes of text files.",
          {{"pipeline.stages", "4"},
           {"pipeline.microbatches", "16"},
           {"dispatch.mode", "\"ready\""},
           {"dispatch.policy", "\"bfw_plus\""},
           {"dispatch.slots", "8", true},
           {"model.layers", "8"},
           {"model.hidden", "128"},
           {"model.heads", "4"},
           // The byte values; documents also need the ids of an image and of their end.
           {"model.vocabulary", documents ? "258" : "256"},
           {"model.context", "128"},
           {"model.dropout", "0.1"},
           {documents ? "data.jsonl" : "data.text", list_of(data)},
           {"data.microbatch_size", "2"},
           {"data.sequence_length", "128"},
           {"data.too_long", "\"cut\"", !documents},
           {"train.steps", "200"},
           {"train.seed", "1"},
           {"train.lr", "0.001"},
           {"train.lr_min", "0.0001"},
           {"train.warmup_steps", "20"}}};
}

content images_job(const template_request& wanted) {
  const bool made_up = wanted.data.empty();
  return {"Trains a small language model on texts with images, encoded by a vision transformer.",
          {{"pipeline.stages", "4"},
           {"pipeline.microbatches", "8"},
           {"dispatch.mode", "\"ready\""},
           {"dispatch.policy", "\"bfw_plus\""},
           {"dispatch.slots", "8", true},
           {"model.family", "\"llama\""},
           {"model.layers", "4"},
           {"model.hidden", "96"},
           {"model.heads", "4"},
           {"model.vocabulary", "258"},
           {"model.context", "256"},
           {"vision.layers", "4"},
           {"vision.hidden", "64"},
           {"vision.heads", "4"},
           {"vision.patch", "8"},
           {"vision.image_size", "32"},
           {"data.images", made_up ? "[\"samples.jsonl\"]" : list_of(wanted.data), made_up},
           {"data.shapes", "4000", !made_up},
           {"data.microbatch_size", "4"},
           {"data.sequence_length", "256"},
           {"data.too_long", "\"skip\"", made_up},
           {"data.bad_samples", "\"skip\"", true},
           {"data.image_side_max", "32"},
           {"train.steps", "400"},
           {"train.seed", "1"},
           {"train.lr", "0.002"},
           {"train.lr_min", "0.0001"},
           {"train.warmup_steps", "20"}}};
}

content pretrained_job(const template_request& wanted) {
  return {"Fine-tunes a pretrained model in the Hugging Face format.",
          {{"pipeline.stages", "2"},
           {"pipeline.microbatches", "8"},
           {"pipeline.recompute", "true", true},
           {"dispatch.mode", "\"ready\""},
           {"dispatch.policy", "\"bfw_plus\""},
           {"dispatch.slots", "4", true},
           {"model.pretrained", in_quotes(wanted.model.empty() ? "model" : wanted.model)},
           {"model.precision", "\"bf16\"", true},
           {"data.tokens",
            list_of(wanted.data.empty() ? std::vector<std::string>{"tokens.bin"} : wanted.data)},
           {"data.microbatch_size", "1"},
           {"data.sequence_length", "128"},
           {"data.too_long", "\"cut\""},
           {"train.steps", "100"},
           {"train.seed", "1"},
           {"train.lr", "0.00002"},
           {"train.warmup_steps", "10"}}};
}

content content_of(const template_request& wanted) {
  auto made = wanted.kind == template_kind::text     ? text_job(wanted)
              : wanted.kind == template_kind::images ? images_job(wanted)
                                                     : pretrained_job(wanted);
  for (const line& l :
       {line{"device.kind", "\"cuda\"", true}, line{"checkpoint.dir", "\"checkpoints\"", true},
        line{"checkpoint.every", "50", true}})
    made.lines.push_back(l);
  return made;
}

}  // namespace

std::optional<template_kind> template_kind_of(std::string_view name) {
  if (name == "text") return template_kind::text;
  if (name == "images") return template_kind::images;
  if (name == "pretrained") return template_kind::pretrained;
  return std::nullopt;
}

std::string job_template(const template_request& wanted) {
  const auto made = content_of(wanted);
  auto out = comment(made.title) +
             comment(
                 "A key behind # keeps its default; remove the # to set it. `rrfp-node keys` "
                 "prints every key.");
  std::string_view section;
  for (const auto& l : made.lines) {
    const auto* const k = runtime_schema().find(l.key);
    RRFP_CHECK(k != nullptr, "a template must use keys of the schema");
    if (k->section() != section) {
      section = k->section();
      out += "\n[" + std::string{section} + "]\n";
    }
    out += comment(k->meaning + " (" + k->type + (k->unit.empty() ? "" : "; " + k->unit) + ")");
    out += (l.is_off ? "# " : "") + std::string{k->leaf()} + " = " + l.value + "\n";
  }
  return out +
         "\n# To run the job twice and compare, in order and by readiness, remove the # from these "
         "lines.\n"
         "# [[compare]]\n"
         "# name = \"in-order 1F1B\"\n"
         "# dispatch.mode = \"in-order\"\n"
         "# dispatch.policy = \"one_f_one_b\"\n"
         "#\n"
         "# [[compare]]\n"
         "# name = \"ready BFW\"\n";
}

}  // namespace rrfp::job
