/// Writes the inputs that are not text, from which fuzzers begin: headers of UCX messages, frames
/// of the membership, images.
///
///   write_corpus FOLDER      into FOLDER/ucx_frame, FOLDER/rendezvous, FOLDER/image
#include <turbojpeg.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include <rrfp/base/bytes.hpp>
#include <rrfp/data/image_file.hpp>
#include <rrfp/membership/frames.hpp>
#include <rrfp/transport/ucx/wire_format.hpp>

namespace {

namespace fs = std::filesystem;
using namespace rrfp;
using namespace rrfp::actors;

class folder {
 public:
  explicit folder(fs::path path) : path_(std::move(path)) { fs::create_directories(path_); }
  void write(const std::string& name, const void* bytes, std::size_t size) const {
    std::ofstream out{path_ / name, std::ios::binary};
    out.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
    if (!out) throw std::runtime_error("cannot write " + (path_ / name).string());
  }

 private:
  fs::path path_;
};

/// Without the checksum, which the fuzzer appends.
template <class Header>
void write_header(const folder& to, const std::string& name, const Header& h) {
  ucx::header_buffer bytes{};
  const auto size = ucx::encode(h, bytes);
  to.write(name, bytes.data(), size - sizeof(std::uint64_t));
}

void write_ucx_frames(const folder& to) {
  const node_id from{4};
  messaging::tensor_header tensor;
  tensor.job_token = 7;
  tensor.from_node = from;
  tensor.message = {payload::gradient,
                    step_id{1},
                    microbatch_id{6},
                    chunk_id{2},
                    {stage_id{9}, rank_id{10}, replica_id{11}},
                    {stage_id{12}, rank_id{13}, replica_id{14}}};
  write_header(to, "scalar", tensor);
  tensor.type = dtype::bfloat16;
  tensor.dims = 3;
  tensor.shape = {5, 7, 256};
  tensor.data_bytes = 5 * 7 * 256 * 2;
  tensor.has_data_hash = true;
  write_header(to, "tensor", tensor);
  write_header(to, "bytes",
               messaging::bytes_header{7, 3, from, 2, rank_id{1}, rank_id{2}, 5, 6, true});
  write_header(to, "actor_message",
               messaging::actor_message_header{7, 3, from, 9, 12'345, true, 8});
  write_header(to, "disconnect", messaging::disconnect_header{7, 3, from, true});
}

/// The progress of a stage that runs a launch, with the tables of the run that the fuzzer of actor
/// messages has.
std::string progress_message() {
  constexpr std::uint8_t supervisor = 2, stage_progress = 24, running = 1;
  constexpr std::uint32_t microbatches = 3, tasks = 6;
  byte_writer w;
  const auto words = [&](std::initializer_list<std::uint32_t> all) {
    for (const auto x : all) w.put(x);
  };
  const auto zeros = [&](int count) {
    for (int i = 0; i < count; ++i) w.put(std::uint8_t{0});
  };
  w.put(supervisor);
  words({0, 0, 0});
  w.put(stage_progress);
  w.put(std::string_view{"text"});
  words({0, 0});
  w.put(running);
  w.put(std::uint64_t{1});  // the step
  words({microbatches, 1});
  zeros(8 + 9 + 5 + 8);  // the launch: number, task, reason, folds
  words({0, 1});         // its piece
  zeros(1);
  w.put(std::uint64_t{3});         // ranks that have not finished it
  zeros(1 + 10 + 1 + 32);          // the wait, its bound, memory
  words({1, 0, 0, tasks, tasks});  // a holder, ready, remaining
  zeros(tasks * (8 + 8 + 4));
  words({1});
  w.put(std::int64_t{1000});
  zeros(16);
  return w.take();
}

/// A message of each code: the address of a supervisor, then zeros, which are empty texts and
/// lists.
void write_actor_messages(const folder& to) {
  const auto progress = progress_message();
  to.write("progress", progress.data(), progress.size());
  for (int code = 0; code < 30; ++code) {
    std::string bytes(14 + 120, '\0');
    bytes[0] = 2;
    bytes[13] = static_cast<char>(code);
    to.write("zeros-" + std::to_string(code), bytes.data(), bytes.size());
  }
}

void write_frames(const folder& to) {
  using namespace control;
  const auto write = [&](const std::string& name, std::initializer_list<frame> frames) {
    std::string bytes{'\x7f'};  // large frames, 63 bytes at a time
    for (const auto& f : frames) bytes += to_bytes(f);
    to.write(name, bytes.data(), bytes.size());
  };
  const claim good{wire_version, {"0.1.0", "job", 7, 2}, 1};
  auto other = good;
  other.job.job_hash = 8;
  write("joining", {to_frame(good), to_frame(introduce{"stage 1"}), to_frame(ping{1, "up"})});
  write("refused", {to_frame(other), to_frame(refuse{"no", 1})});
  write("accepted",
        {to_frame(accept{}), to_frame(start{"stage 0"}), to_frame(pong{1, 2, "step 1"})});
  write("exchange", {to_frame(piece{1, 4, "four"}), to_frame(no_exchange{"node 1 has left"})});
  write("leaving", {to_frame(lost{1, "silent"}), to_frame(goodbye{}), to_frame(give_up{"reason"})});
}

std::string jpeg_of(const data::pixels& image, TJSAMP subsampling) {
  const std::unique_ptr<void, int (*)(void*)> handle{tjInitCompress(), tjDestroy};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  tjCompress2(handle.get(), image.rgb.data(), static_cast<int>(image.size.width), 0,
              static_cast<int>(image.size.height), TJPF_RGB, &bytes, &size, subsampling, 80, 0);
  std::string jpeg{reinterpret_cast<const char*>(bytes), size};
  tjFree(bytes);
  return jpeg;
}

void write_images(const folder& to) {
  data::pixels image{{9, 12}, {}};
  for (int i = 0; i < 9 * 12 * 3; ++i) image.rgb.push_back(static_cast<std::uint8_t>(i * i / 7));
  const auto png = data::encode_png(image);
  if (!png) throw std::runtime_error(png.message());
  to.write("picture.png", png->data(), png->size());
  for (const auto& [name, kind] :
       {std::pair{"picture.jpg", TJSAMP_420}, std::pair{"grey.jpg", TJSAMP_GRAY}}) {
    const auto jpeg = jpeg_of(image, kind);
    to.write(name, jpeg.data(), jpeg.size());
    // The same with an orientation, after the first marker.
    using namespace std::string_view_literals;
    auto turned = jpeg;
    turned.insert(2,
                  "\xff\xe1\0\x22"
                  "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"sv);
    to.write("turned-" + std::string{name}, turned.data(), turned.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("expected a folder");
    const fs::path to{argv[1]};
    write_ucx_frames(folder{to / "ucx_frame"});
    write_actor_messages(folder{to / "actor_message"});
    write_frames(folder{to / "rendezvous"});
    write_images(folder{to / "image"});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "write_corpus: %s\n", e.what());
    return 1;
  }
}
