#include "kinds.hpp"

#include <turbojpeg.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <rrfp/checkpoint/checksum.hpp>
#include <rrfp/io/parse_json.hpp>

#include "program.hpp"

namespace rrfp::fuzz {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;
using words = std::vector<std::string>;

void write(const std::string& file, const std::string& text) {
  std::ofstream{file, std::ios::binary | std::ios::trunc} << text;
}

std::string from_corpus(const std::string& file) { return test::text_of(RRFP_CORPUS "/" + file); }

/// Sometimes replaces the file by nothing, a folder, a link to itself or an endless device.
void write_changed(const std::string& file, const std::string& text, mutator& m) {
  if (!m.one_in(50)) return write(file, text);
  std::error_code ignored;
  fs::remove_all(file, ignored);
  if (m.one_in(2)) fs::create_directory(file);
  if (m.one_in(3)) fs::create_symlink(m.one_in(2) ? file : "/dev/zero", file, ignored);
}

void change_text(const std::string& file, mutator& m) {
  write_changed(file, m.text(test::text_of(file)), m);
}
void change_json(const std::string& file, mutator& m) {
  write_changed(file, m.json(test::text_of(file)), m);
}
void change_bytes(const std::string& file, mutator& m) {
  write_changed(file, m.bytes(test::text_of(file)), m);
}

/// Changes one line as JSON, or the whole file as text.
void change_json_lines(const std::string& file, mutator& m) {
  if (m.one_in(3)) return change_text(file, m);
  auto text = test::text_of(file);
  const auto begin = text.rfind('\n', m.below(text.size() - 1)) + 1;
  const auto end = std::min(text.find('\n', begin), text.size());
  text.replace(begin, end - begin, m.json(text.substr(begin, end - begin)));
  write_changed(file, text, m);
}

std::string little_endian(std::uint64_t n) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(n >> (8 * i));
  return bytes;
}

/// Changes the header as JSON, or the file as bytes.
void change_safetensors(const std::string& file, mutator& m) {
  if (m.one_in(3)) return change_bytes(file, m);
  const auto text = test::text_of(file);
  std::uint64_t size = 0;
  std::memcpy(&size, text.data(), sizeof size);
  const auto header = m.json(text.substr(8, size));
  write_changed(file, little_endian(header.size()) + header + text.substr(8 + size), m);
}

std::uint32_t png_checksum(std::string_view bytes) {
  std::uint32_t sum = ~0U;
  for (const char byte : bytes) {
    sum ^= static_cast<std::uint8_t>(byte);
    for (int i = 0; i < 8; ++i) sum = sum >> 1 ^ (sum & 1 ? 0xEDB88320U : 0U);
  }
  return ~sum;
}

/// Corrects the checksums chunk by chunk, so that a change is not refused for its checksum alone.
void fix_png_checksums(std::string& png) {
  const auto number_at = [&](std::size_t at) {
    std::size_t n = 0;
    for (std::size_t i = 0; i < 4; ++i) n = n << 8 | static_cast<std::uint8_t>(png[at + i]);
    return n;
  };
  for (std::size_t at = 8; at + 12 <= png.size();) {
    const auto length = number_at(at);
    if (length > png.size() - at - 12) return;
    const auto sum = png_checksum(std::string_view{png}.substr(at + 4, length + 4));
    for (std::size_t i = 0; i < 4; ++i)
      png[at + 8 + length + i] = static_cast<char>(sum >> (24 - 8 * i));
    at += length + 12;
  }
}

/// Corrects the checksums of a changed checkpoint.
void fix_checkpoint_checksums(const std::string& folder) {
  auto parsed = parse_json<json>(test::text_of(folder + "/manifest.json"));
  if (std::holds_alternative<json_fault>(parsed)) return;
  auto& manifest = std::get<json>(parsed);
  if (!manifest.is_object() || !manifest.contains("files")) return;
  for (auto& f : manifest["files"]) {
    if (!f.is_object() || !f.contains("name") || !f["name"].is_string()) continue;
    const auto sum = checkpoint::sum_of_file(folder + "/" + f["name"].get<std::string>());
    if (!sum) continue;
    f["bytes"] = sum->bytes;
    f["xxh64"] = checkpoint::hex(sum->xxh64);
  }
  manifest.erase("xxh64");
  manifest["xxh64"] = checkpoint::hex(checkpoint::checksum_of(manifest.dump()));
  write(folder + "/manifest.json", manifest.dump(1) + "\n");
}

void write_jpeg(const std::string& file) {
  std::vector<unsigned char> rgb;
  for (int i = 0; i < 24 * 20 * 3; ++i) rgb.push_back(static_cast<unsigned char>(i * i / 7));
  const auto handle = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  tjCompress2(handle, rgb.data(), 24, 0, 20, TJPF_RGB, &bytes, &size, TJSAMP_420, 80, 0);
  write(file, std::string(reinterpret_cast<const char*>(bytes), size));
  tjFree(bytes);
  tjDestroy(handle);
}

const std::string sizes = R"([pipeline]
stages = 2
microbatches = 2
[model]
layers = 2
hidden = 8
heads = 2
context = 16
vocabulary = 258
[train]
steps = 1
[run]
progress = "none"
hang_timeout_s = 10
[data]
microbatch_size = 1
sequence_length = 16
order = "file"
)";

/// Overrides that make any job short.
const words small{"--set", "train.steps=1",
                  "--set", "pipeline.stages=2",
                  "--set", "pipeline.chunks=1",
                  "--set", "pipeline.tp=1",
                  "--set", "pipeline.replicas=1",
                  "--set", "pipeline.microbatches=2",
                  "--set", "model.layers=2",
                  "--set", "model.hidden=8",
                  "--set", "model.heads=2",
                  "--set", "model.context=16",
                  "--set", "model.vocabulary=258",
                  "--set", "vision.layers=0",
                  "--set", "data.sequence_length=16",
                  "--set", "data.microbatch_size=1",
                  "--set", "jitter.compute=none",
                  "--set", "jitter.link=none",
                  "--set", "run.hang_timeout_s=10",
                  "--set", "device.kind=cpu",
                  "--set", "run.spin_us=0"};

words with(words a, const words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

command node(const words& arguments) { return {"rrfp-node", arguments}; }

/// `check` or `run` of job.toml.
command check_or_run(mutator& m) { return node({m.one_in(3) ? "run" : "check", "job.toml"}); }

void make_tokens(const std::string& folder) {
  std::string ids;
  for (unsigned i = 0; i < 200; ++i) ids += {static_cast<char>(i * i % 251), '\0'};
  write(folder + "/a.bin", ids);
  write(
      folder + "/a.json",
      "{\"format\": \"rrfp-tokens\", \"version\": 1, \"dtype\": \"uint16\", \"tokens\": 200, "
      "\"vocabulary\": 258, \"documents\": [0, 14, 30, 60, 75, 90, 104, 120, 135, 150, 165, 180]}");
}

void make_checkpoint(const std::string& folder, const runner& run) {
  make_tokens(folder);
  write(folder + "/job.toml", sizes +
                                  "too_long = \"cut\"\ntokens = \"a.bin\"\n[checkpoint]\ndir = "
                                  "\"saved\"\nevery = 1\n");
  run(folder, node({"run", "job.toml", "--set", "train.steps=2"}));
}

void make_model(const std::string& folder, const runner& run, const words& how) {
  make_checkpoint(folder, run);
  run(folder, node(with({"export", "saved", "--out", "model"}, how)));
  fs::remove_all(folder + "/saved");
  write(
      folder + "/job.toml",
      "[pipeline]\nstages = 2\nmicrobatches = 2\n[model]\npretrained = \"model\"\n[data]\ntokens = "
      "\"a.bin\"\nsequence_length = 16\nmicrobatch_size = 1\ntoo_long = \"cut\"\n[train]\nsteps = "
      "1\n[run]\nhang_timeout_s = 10\nprogress = \"none\"\n");
}

kind jobs() {
  return {"job",
          [](const std::string& at, const runner&) {
            write(at + "/job.toml", from_corpus("job/every_section.toml"));
          },
          [](const std::string& at, mutator& m) -> command {
            if (m.one_in(4)) {  // an override instead
              static const words keys{"train.lr",     "dispatch.policy", "cost.forward_ms",
                                      "model.hidden", "data.text",       "pipeline.nodes",
                                      "name",         "checkpoint.dir",  "nothing.here"};
              auto text = m.pick(keys) + "=" + m.number();
              if (m.one_in(2)) text = m.text(text);
              text = text.substr(0, std::min(text.find('\0'), std::size_t{100'000}));
              return node({"check", "job.toml", "--set", text});
            }
            change_text(at + "/job.toml", m);
            switch (m.below(4)) {
              case 0: return node(with({"run", "job.toml"}, small));
              case 1:
                return {
                    "rrfp-sim",
                    {"job.toml", "--set", "dispatch.slot_bytes=0", "--json", "out.json", "--gaps"}};
              default: return node({"check", "job.toml"});
            }
          },
          {node({"check", "job.toml"}),
           {"rrfp-sim", {"job.toml", "--set", "dispatch.slot_bytes=0", "--json", "out.json"}}}};
}

kind experiments() {
  return {"experiment",
          [](const std::string& at, const runner&) {
            write(at + "/e.toml", from_corpus("experiment/small.toml"));
          },
          [](const std::string& at, mutator& m) -> command {
            change_text(at + "/e.toml", m);
            const auto cell = std::to_string(m.below(8));
            return {"rrfp-jitter", {"e.toml", "--cell", cell, "--engine", "simulator"}};
          },
          {{"rrfp-jitter", {"e.toml", "--cell", "5", "--engine", "simulator"}}}};
}

kind cells() {
  const command all{"rrfp-jitter", {"e.toml", "--out", "out", "--engine", "simulator"}};
  return {"cells",
          [all](const std::string& at, const runner& run) {
            write(at + "/e.toml", from_corpus("experiment/small.toml"));
            run(at, all);
          },
          [all](const std::string& at, mutator& m) {
            change_json_lines(at + "/out/cells.jsonl", m);
            return all;
          },
          {all}};
}

kind schedules() {
  const command read{"rrfp-node", {"check", "job.toml", "--set", "dispatch.policy=table:t.csv"}};
  return {"schedule",
          [](const std::string& at, const runner& run) {
            make_tokens(at);
            write(at + "/job.toml", sizes + "tokens = \"a.bin\"\ntoo_long = \"cut\"\n");
            run(at, {"rrfp-sim", {"job.toml", "--write-schedule", "t.csv"}});
          },
          [read](const std::string& at, mutator& m) -> command {
            change_text(at + "/t.csv", m);
            if (m.one_in(4))
              return node({"run", "job.toml", "--set", "dispatch.policy=table:t.csv"});
            return read;
          },
          {read}};
}

kind durations() {
  const command read{"rrfp-sim", {"job.toml", "--durations", "d.csv", "--steps", "2"}};
  return {"durations",
          [](const std::string& at, const runner& run) {
            write(at + "/job.toml", sizes);
            run(at, {"rrfp-sim",
                     {"job.toml", "--write-durations", "d.csv", "--steps", "2", "--set",
                      "jitter.compute=lognormal"}});
          },
          [read](const std::string& at, mutator& m) -> command {
            change_text(at + "/d.csv", m);
            if (m.one_in(3)) return {"rrfp-sim", {"job.toml", "--set", "jitter.delays=d.csv"}};
            return read;
          },
          {read}};
}

kind traces() {
  const command read{
      "rrfp-report",
      {"trace.json", "--out", "page.html", "--profile", "p.csv", "--profile", "p.toml"}};
  return {"trace",
          [](const std::string& at, const runner& run) {
            make_tokens(at);
            write(at + "/job.toml", sizes + "tokens = \"a.bin\"\ntoo_long = \"cut\"\n");
            run(at, node({"run", "job.toml", "--trace", "trace.json"}));
          },
          [read](const std::string& at, mutator& m) {
            change_json(at + "/trace.json", m);
            return read;
          },
          {read}};
}

kind checkpoints() {
  const auto resume = node({"run", "job.toml", "--set", "train.steps=3"});
  const auto write_model = node({"export", "saved", "--out", "written"});
  return {"checkpoint",
          make_checkpoint,
          [=](const std::string& at, mutator& m) {
            const auto step = at + "/saved/step-00000002";
            if (m.one_in(2))
              change_json(step + "/manifest.json", m);
            else
              change_safetensors(
                  step + "/stage-00" + std::to_string(m.below(2)) + "-rank-00.safetensors", m);
            if (!m.one_in(4)) fix_checkpoint_checksums(step);
            switch (m.below(4)) {
              case 0: return node({"check", "job.toml", "--set", "train.steps=3"});
              case 1: return resume;
              default: return write_model;
            }
          },
          {resume, write_model}};
}

kind configs() {
  return {"config",
          [](const std::string& at, const runner& run) { make_model(at, run, {}); },
          [](const std::string& at, mutator& m) {
            change_json(at + "/model/config.json", m);
            return check_or_run(m);
          },
          {node({"check", "job.toml"}), node({"run", "job.toml"})}};
}

kind weights() {
  return {"weights",
          [](const std::string& at, const runner& run) {
            make_model(at, run, {"--max-shard-bytes", "4096"});
          },
          [](const std::string& at, mutator& m) -> command {
            words files;
            for (const auto& file : fs::directory_iterator{at + "/model"})
              if (file.path().extension() == ".safetensors") files.push_back(file.path().string());
            std::sort(files.begin(), files.end());
            if (m.one_in(3))
              change_json(at + "/model/model.safetensors.index.json", m);
            else
              change_safetensors(m.pick(files), m);
            return node({m.one_in(4) ? "check" : "run", "job.toml"});
          },
          {node({"run", "job.toml"})}};
}

kind json_lines() {
  return {"jsonl",
          [](const std::string& at, const runner&) {
            write(at + "/a.jsonl", from_corpus("jsonl/documents.jsonl"));
            write(at + "/job.toml", sizes + "too_long = \"cut\"\njsonl = \"a.jsonl\"\n");
          },
          [](const std::string& at, mutator& m) {
            change_json_lines(at + "/a.jsonl", m);
            auto read = check_or_run(m);
            if (m.one_in(3))
              read.arguments = with(read.arguments, {"--set", "data.bad_samples=skip"});
            return read;
          },
          {node({"check", "job.toml"}), node({"run", "job.toml"})}};
}

kind tokens() {
  return {"tokens",
          [](const std::string& at, const runner&) {
            make_tokens(at);
            write(at + "/job.toml", sizes + "too_long = \"cut\"\ntokens = \"a.bin\"\n");
          },
          [](const std::string& at, mutator& m) {
            if (m.one_in(4))
              change_bytes(at + "/a.bin", m);
            else
              change_json(at + "/a.json", m);
            return check_or_run(m);
          },
          {node({"check", "job.toml"}), node({"run", "job.toml"})}};
}

kind images() {
  return {
      "image",
      [](const std::string& at, const runner& run) {
        run(at, {"rrfp-shapes", {"shapes", "--samples", "2"}});
        write_jpeg(at + "/b.jpg");
        for (const auto& file : fs::recursive_directory_iterator{at + "/shapes"})
          if (file.path().extension() == ".png")
            fs::copy_file(file, at + "/a.png", fs::copy_options::overwrite_existing);
        write(at + "/a.jsonl",
              "{\"images\": [\"a.png\", \"b.jpg\"], \"text\": \"<image> and <image>\"}\n");
        write(at + "/job.toml",
              "[pipeline]\nstages = 2\nmicrobatches = 1\n[model]\nfamily = \"llama\"\nlayers = 1\n"
              "hidden = 8\nheads = 2\nvocabulary = 258\ncontext = 256\n[vision]\nlayers = "
              "1\nhidden = 8\nheads = 2\npatch = 8\nimage_size = 32\n[data]\nimages = "
              "\"a.jsonl\"\nmicrobatch_size = 1\nsequence_length = 256\nimage_side_max = "
              "32\ntoo_long = \"cut\"\n[train]\nsteps = 1\n[run]\nprogress = \"none\"\n"
              "hang_timeout_s = 10\n");
      },
      [](const std::string& at, mutator& m) -> command {
        switch (m.below(5)) {
          case 0: change_json_lines(at + "/a.jsonl", m); break;
          case 1:
          case 2: change_bytes(at + "/b.jpg", m); break;
          default: {
            auto png = m.bytes(test::text_of(at + "/a.png"));
            if (!m.one_in(3)) fix_png_checksums(png);
            write_changed(at + "/a.png", png, m);
          }
        }
        auto read = node({m.one_in(4) ? "check" : "run", "job.toml"});
        if (m.one_in(3)) read.arguments = with(read.arguments, {"--set", "data.bad_samples=skip"});
        return read;
      },
      {node({"check", "job.toml"}), node({"run", "job.toml"})}};
}

}  // namespace

std::vector<kind> all_kinds() {
  return {jobs(),        experiments(), cells(),   schedules(),  durations(), traces(),
          checkpoints(), configs(),     weights(), json_lines(), tokens(),    images()};
}

}  // namespace rrfp::fuzz
