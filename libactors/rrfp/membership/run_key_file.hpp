/// The key of a job on loopback that has neither a key file nor a launcher: a file of the user,
/// named by the port of the rendezvous, so that no other user of the machine can join.
///
/// Whichever node comes first creates the file, complete or not at all; node 0 removes it when its
/// membership ends. If it is killed, the next job with that port uses the file again. Two jobs that
/// follow each other at one port may exchange the file while nodes join: therefore node 0 reads it
/// for each handshake, and a refused node tries again if the file has changed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "secret.hpp"

namespace rrfp::actors::control {

/// $XDG_RUNTIME_DIR if that is a folder for this user alone, otherwise /tmp.
std::string key_folder();

class run_key_file {
 public:
  explicit run_key_file(std::uint16_t port);
  run_key_file(const std::string& folder, std::uint16_t port);

  const std::string& path() const { return path_; }
  /// The key in the file, which it creates if there is none. Error: the file is not a regular file
  /// of this user with mode 0600 and a key.
  result<secret> read_or_create();
  /// Whether the file differs from what read_or_create() has returned.
  bool has_changed() const;
  /// Removes the file unless another job has replaced it.
  void remove() const;

 private:
  /// Empty: there is no file.
  result<std::optional<secret>> read() const;
  status create() const;

  std::string path_;
  std::optional<secret> last_;
};

}  // namespace rrfp::actors::control
