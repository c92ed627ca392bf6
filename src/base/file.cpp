// Whole files in and out. zlib's gzFile reads plain files as they are and unpacks the rest.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include "pipewright/base.hpp"

namespace pipewright {
namespace {

/// A file by what names cannot hide: device, number, and when it was made, as numbers of deleted files are given again.
struct Identity {
  std::uint32_t device_major = 0, device_minor = 0;
  std::uint64_t number = 0;
  std::int64_t made_s = 0;
  std::uint32_t made_ns = 0;
  friend bool operator==(const Identity&, const Identity&) = default;
};

/// None: no regular file of this name.
std::optional<Identity> identity(const std::string& path) {
  struct statx status {};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_TYPE | STATX_INO | STATX_BTIME, &status) != 0) return {};
  if (!S_ISREG(status.stx_mode)) return {};
  return Identity{status.stx_dev_major, status.stx_dev_minor, status.stx_ino, status.stx_btime.tv_sec,
                  status.stx_btime.tv_nsec};
}

/// Files this process has read.
class Inputs {
 public:
  void add(const std::string& path) {
    const auto file = identity(path);
    if (!file) return;
    const std::lock_guard lock(mutex_);
    files_.push_back(*file);
  }
  bool holds(const std::string& path) {
    const auto file = identity(path);
    const std::lock_guard lock(mutex_);
    return file && std::ranges::find(files_, *file) != files_.end();
  }

 private:
  std::mutex mutex_;
  std::vector<Identity> files_;
};

Inputs& inputs() {
  static Inputs all;
  return all;
}

}  // namespace

void note_input(const std::string& path) { inputs().add(path); }

void require_no_input(const std::string& path) {
  if (inputs().holds(path)) throw UsageError({path, 0}, {}, "cannot write: this file is an input of the same command");
}

/// The file behind a link, also where there is none yet: a link keeps pointing where it did.
std::filesystem::path behind_links(const std::filesystem::path& path) {
  constexpr int most_links = 40;  // as the kernel has it (path_resolution(7))
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    const auto resolved = std::filesystem::canonical(path, error);  // fails for a pipe behind /dev/stdout
    return error ? path : resolved;
  }
  std::filesystem::path target = path;
  for (int links = 0; links < most_links && std::filesystem::is_symlink(target, error); ++links) {
    const auto next = std::filesystem::read_symlink(target, error);
    if (error) break;
    target = target.parent_path() / next;  // an absolute one replaces the folder
  }
  const auto resolved = std::filesystem::weakly_canonical(target, error);
  return error ? target : resolved;
}

void require_writable(const std::string& path) {
  require_no_input(path);
  const auto require = [&](const std::filesystem::path& where, int how) {
    if (::access(where.c_str(), how) != 0)
      throw UsageError({path, 0}, {}, std::string("cannot write: ") + std::strerror(errno));
  };
  std::error_code error;
  const std::filesystem::path target = behind_links(path);
  const auto status = std::filesystem::status(target, error);
  if (std::filesystem::is_directory(status)) throw UsageError({path, 0}, {}, "cannot write: this is a directory");
  // A file is replaced as a whole, what stands for a device is written to.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) return require(target, W_OK);
  require(target.has_parent_path() ? target.parent_path() : ".", W_OK | X_OK);
}

bool inflates_too_much(std::size_t unpacked, std::int64_t packed) {
  constexpr std::size_t unsuspicious = std::size_t{64} << 20U;  // bytes; JSON of traces packs to a tenth or twentieth
  return unpacked > unsuspicious && packed > 0 && unpacked / 200 > static_cast<std::size_t>(packed);
}

std::string read_file(const std::string& path, std::size_t largest) {
  const auto refuse = [&](const std::string& why) { return UsageError({path, 0}, {}, "cannot read: " + why); };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw refuse("no such file");
  if (std::filesystem::is_directory(status)) throw refuse("this is a directory");
  note_input(path);

  const auto close = [](gzFile file) { gzclose(file); };
  const std::unique_ptr<gzFile_s, decltype(close)> file(gzopen(path.c_str(), "rb"), close);
  if (!file) throw refuse(std::strerror(errno));
  gzbuffer(file.get(), 1U << 18U);
  std::string content;
  std::vector<char> block(std::size_t{1} << 18U);
  for (;;) {
    const int got = gzread(file.get(), block.data(), static_cast<unsigned>(block.size()));
    int problem = Z_OK;
    const char* text = gzerror(file.get(), &problem);
    if (got < 0 || problem == Z_BUF_ERROR) {  // Z_BUF_ERROR: a truncated .gz
      throw refuse(problem == Z_ERRNO ? std::strerror(errno) : text);
    }
    if (got == 0) return content;
    if (inflates_too_much(content.size() + static_cast<std::size_t>(got), gzoffset(file.get())))
      throw refuse("unpacks to more than 200 times its size: no file of measurements does");
    if (content.size() + static_cast<std::size_t>(got) > largest)
      throw refuse(fmt::format("larger than {} (unpacked)", format_bytes(Bytes(static_cast<std::int64_t>(largest)))));
    content.append(block.data(), static_cast<std::size_t>(got));
  }
}

void write_file(const std::string& path, std::string_view content) {
  require_no_input(path);
  // A device or pipe (/dev/stderr) is written to, never replaced.
  const std::string target = behind_links(path).string();
  struct stat old {};
  const bool exists = ::stat(target.c_str(), &old) == 0;
  const bool replace = !exists || S_ISREG(old.st_mode);
  // A name of its own in the same folder: one made of the target's may be longer than names can be.
  const std::filesystem::path folder = std::filesystem::path(target).parent_path();
  const std::string written_to =
      replace ? (folder / fmt::format(".pipewright.{}.{:x}.tmp", getpid(), std::hash<std::string>()(target))).string()
              : target;
  const auto refuse = [&] {
    const std::string why = std::strerror(errno);
    if (replace) std::remove(written_to.c_str());
    return UsageError({path, 0}, {}, "cannot write: " + why);
  };
  // Without a name where the file system can (not NFS): who is killed while writing leaves nothing behind.
  constexpr mode_t anyone = 0666;  // less the umask, as fopen
  const int nameless = replace && ::access("/proc/self/fd", X_OK) == 0
                           ? ::open((folder / ".").c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, anyone)
                           : -1;
  std::FILE* file = nameless >= 0 ? ::fdopen(nameless, "wb") : std::fopen(written_to.c_str(), "wb");
  if (file == nullptr) throw refuse();
  const std::string itself = "/proc/self/fd/" + std::to_string(::fileno(file));
  const bool written =
      std::fwrite(content.data(), 1, content.size(), file) == content.size() &&
      (nameless < 0 || (std::fflush(file) == 0 &&
                        ::linkat(AT_FDCWD, itself.c_str(), AT_FDCWD, written_to.c_str(), AT_SYMLINK_FOLLOW) == 0));
  // Who may read the file stays as it was; an owner that cannot be kept is no reason to fail.
  if (replace && exists && ::fchmod(::fileno(file), old.st_mode & 07777) != 0) errno = 0;
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || (replace && std::rename(written_to.c_str(), target.c_str()) != 0)) throw refuse();
}

}  // namespace pipewright
