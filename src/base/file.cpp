// Whole files in and out. zlib's gzFile reads plain files as they are and unpacks the rest.
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "pipewright/base.hpp"

namespace pipewright {

std::string read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) { return UsageError({path, 0}, {}, "cannot read: " + why); };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw refuse("no such file");
  if (std::filesystem::is_directory(status)) throw refuse("this is a directory");

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
    content.append(block.data(), static_cast<std::size_t>(got));
  }
}

void write_file(const std::string& path, std::string_view content) {
  // A link keeps pointing where it did; a device or pipe (/dev/stderr) is written to, never replaced.
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::canonical(path, error);
  const std::string target = error ? path : resolved.string();
  const auto type = std::filesystem::status(target, error).type();
  const bool replace = type == std::filesystem::file_type::not_found || type == std::filesystem::file_type::regular;
  const std::string written_to = replace ? fmt::format("{}.{}.tmp", target, getpid()) : target;
  const auto refuse = [&] {
    const std::string why = std::strerror(errno);
    if (replace) std::remove(written_to.c_str());
    return UsageError({path, 0}, {}, "cannot write: " + why);
  };
  std::FILE* file = std::fopen(written_to.c_str(), "wb");
  if (file == nullptr) throw refuse();
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || (replace && std::rename(written_to.c_str(), target.c_str()) != 0)) throw refuse();
}

}  // namespace pipewright
