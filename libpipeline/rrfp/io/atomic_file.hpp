/// Atomic file writes. Even after a crash or power loss the path holds either the old file or the
/// complete new one: the data goes to a temporary file in the same folder, which is synced and
/// renamed; then the folder is synced.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <rrfp/base/result.hpp>

namespace rrfp::io {

/// Not thread-safe. Until commit() succeeds, the old file stays at the path; without a commit the
/// destructor removes the temporary file.
class atomic_file {
 public:
  /// Error: the path is a folder or device, or the folder is not writable. All errors of this class
  /// are error_kind::failed and read "PATH: cannot write: WHY".
  static result<std::unique_ptr<atomic_file>> create(const std::string& path);
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;
  ~atomic_file();

  const std::string& path() const { return path_; }
  /// The temporary file: PATH.PID-N.tmp.
  const std::string& temporary_path() const { return temporary_path_; }
  /// Appends. After an error, such as a full disk, the file cannot be committed.
  status write(std::span<const std::byte> bytes);
  /// Call once. On success the complete file is on disk at the path.
  status commit();

 private:
  atomic_file(std::string path, std::string temporary_path, int opened);

  const std::string path_;
  const std::string temporary_path_;
  int opened_ = -1;
  bool committed_ = false;
};

/// Writes a whole text as an atomic file.
status write_atomically(const std::string& path, std::string_view text);

/// Whether an atomic file can be created at `path`: for a check before long work. Leaves no file
/// behind. Error: bad input, with the text of atomic_file::create().
status check_writable(const std::string& path);

/// Writes a whole text over what is at `path`: neither atomic nor durable. The error reads
/// "PATH: cannot write: WHY", as that of sync_file().
status write_unsynced(const std::string& path, std::string_view text);

/// Makes the contents of a file durable.
status sync_file(const std::string& path);

/// Makes renames, creations and removals in the folder durable.
status sync_folder(const std::string& folder);

}  // namespace rrfp::io
