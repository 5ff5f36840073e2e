/// A file that is there whole or not at all, whenever the power goes: written beside its place
/// under a name that no other file has, synced, renamed, the folder synced.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <rrfp/schedule/result.hpp>

namespace rrfp::files {

/// Not thread-safe. Until commit() has succeeded, what stood at the path stands there, and the end
/// of the object removes what was written.
class whole_file {
 public:
  /// Error: the place cannot be written to, or is held by a folder or device. As all errors of this
  /// class: "PATH: cannot write: WHY".
  static result<std::unique_ptr<whole_file>> create(const std::string& path);
  whole_file(const whole_file&) = delete;
  whole_file& operator=(const whole_file&) = delete;
  ~whole_file();

  const std::string& path() const { return path_; }
  /// Where it is written meanwhile: PATH.PID-N.tmp.
  const std::string& beside() const { return beside_; }
  /// Appends. Error: the disk is full, say; the file can only be given up then.
  status write(std::span<const std::byte> bytes);
  /// Once. Afterwards the file is on the disk under its name.
  status commit();

 private:
  whole_file(std::string path, std::string beside, int opened);
  error failed(const std::string& why) const;

  const std::string path_;
  const std::string beside_;
  int opened_ = -1;
  bool in_place_ = false;
};

/// Such a file in one call.
status write_whole(const std::string& path, std::string_view text);

/// Whether such a file can be made at `path`, found out before the work that fills it. Leaves
/// nothing behind. Error: as whole_file::create().
status check_writable(const std::string& path);

/// What was renamed, made or removed in the folder is on the disk.
status sync_folder(const std::string& folder);

}  // namespace rrfp::files
