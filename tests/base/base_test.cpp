// Errors, sizes, tables and files.
#include "pipewright/base.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

namespace base_test {

using namespace pipewright;

namespace {

std::string refusal(const std::string& size) {
  try {
    parse_bytes(size, {"s.yaml", 3}, "memory_bytes");
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("pipewright_base_test_" + std::to_string(getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return (path / name).string(); }
};

}  // namespace

TEST_CASE("quantities with different units do not mix") {
  static_assert(!std::is_convertible_v<Bytes, Nanoseconds>);
  static_assert(!std::is_convertible_v<int, Bytes>);
  CHECK(Bytes(3) + Bytes(4) * 2 == Bytes(11));
  CHECK(ns_to_ms(Nanoseconds(2'500'000).value) == 2.5);
}

TEST_CASE("an error is one line: file, line, key, message, allowed values, nearest name") {
  const UsageError all({"s.yaml", 12}, "settings.fp8", "unknown value", {"e4m3", "hybrid"}, "hybrid");
  CHECK(std::string(all.what()) ==
        "s.yaml:12: settings.fp8: unknown value; allowed: e4m3, hybrid; did you mean \"hybrid\"?");
  CHECK(std::string(UsageError("nothing fits").what()) == "nothing fits");
  CHECK(std::string(UsageError({"s.yaml", 0}, {}, "empty").what()) == "s.yaml: empty");
  const std::string dirty = UsageError({"a\nb", 1}, "k\x1b[0m", "m\tm").what();
  CHECK(dirty == "a\\x0ab:1: k\\x1b[0m: m\\x09m");
  const std::string odd = UsageError({"\xff\xfe", 1}, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
                                     "\xc2\x9b"
                                     "31m \xe2\x82")
                              .what();
  CHECK(odd == "\\xff\\xfe:1: \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80: \\xc2\\x9b31m \\xe2\\x82");
  CHECK(std::string(UsageError({}, std::string(5000, 'k'), "long").what()).size() < 300);
}

TEST_CASE("the nearest name") {
  const std::vector<std::string> names = {"recompute_modules", "recompute_method", "micro_batch_size", "fp8", "bf16"};
  CHECK(nearest_name("recompute_module", names) == "recompute_modules");
  CHECK(nearest_name("recompute-method", names) == "recompute_method");
  CHECK(nearest_name("mirco_batch_size", names) == "micro_batch_size");  // two letters swapped
  CHECK(nearest_name("BF16", names) == "bf16");
  // Words left out are likelier than words that look alike.
  const std::vector<std::string> sizes = {"num_layers", "num_moe_experts", "moe_ffn_hidden_size", "ffn_hidden_size"};
  CHECK(nearest_name("num_experts", sizes) == "num_moe_experts");
  CHECK(nearest_name("ffn-hidden", sizes) == "ffn_hidden_size");
  CHECK(nearest_name("num_layer", sizes) == "num_layers");
  CHECK(nearest_name("num", sizes).empty());
  CHECK(nearest_name("vp", {"tp", "vpp"}) == "vpp");
  CHECK(nearest_name("_", sizes).empty());
  CHECK(nearest_name("num_layers", names).empty());
  CHECK(nearest_name("", names).empty());
  CHECK(nearest_name("zzz", names).empty());
  CHECK(nearest_name(std::string(100'000, 'r'), names).empty());
}

TEST_CASE("sizes as people write them") {
  const auto bytes = [](const char* text) { return parse_bytes(text, {}, "k").value; };
  CHECK(bytes("0") == 0);
  CHECK(bytes("80530636800") == 80'530'636'800);
  CHECK(bytes("80GB") == 80'000'000'000);
  CHECK(bytes("74GiB") == 79'456'894'976);
  CHECK(bytes("1.5GiB") == 1'610'612'736);
  CHECK(bytes("1.5 GiB") == 1'610'612'736);
  CHECK(bytes("0.1GB") == 100'000'000);  // exact, where 0.1 as a double is not
  CHECK(bytes("512 MiB") == 536'870'912);
  CHECK(bytes("3kB") == 3000);
  CHECK(bytes("4194304TiB") == std::int64_t{1} << 62);
}

TEST_CASE("what is no size") {
  for (const char* text : {"", "GB", "-1", "-80GB", "1.5", "1.GB", ".5GB", "80 GB!", "80gb", "80GiG", "1e9", "0x10",
                           "80GB80", "4194305TiB", "99999999999999999999", "80  GB", "+5", " 5"}) {
    CAPTURE(text);
    const std::string message = refusal(text);
    CHECK(message.starts_with("s.yaml:3: memory_bytes: "));
    CHECK(message.find("80GB or 74GiB") != std::string::npos);
  }
}

TEST_CASE("sizes in reports") {
  CHECK(format_bytes(Bytes(512)) == "512 B");
  CHECK(format_bytes(Bytes(436'207'616)) == "416.0 MiB");
  CHECK(format_bytes(Bytes(31'482'127'155)) == "29.32 GiB");
  CHECK(format_bytes(Bytes(-1024)) == "-1.0 KiB");
  CHECK(format_bytes(Bytes(std::numeric_limits<std::int64_t>::min())).starts_with("-"));
}

TEST_CASE("columns line up") {
  Table table({"rank", "ms"});
  table.add({"0", "436.92"});
  table.add({"10 µs", "7"});
  CHECK(table.text() ==
        "rank       ms\n"
        "-------------\n"
        "0      436.92\n"
        "10 µs       7\n");
}

std::string content_of(const std::string& path) {  // not read_file: what that has read is never replaced
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("a file that was read is not replaced, by whatever name") {
  const Folder folder;
  const std::string path = folder.file("input.yaml");
  write_file(path, "mine");
  CHECK(read_file(path) == "mine");
  std::filesystem::create_symlink(path, folder.file("link"));
  std::filesystem::create_hard_link(path, folder.file("hard"));
  std::filesystem::create_directory(folder.file("sub"));
  for (const std::string& name : {path, folder.file("link"), folder.file("hard"), folder.file("sub/../input.yaml")}) {
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(write_file(name, "x"), doctest::Contains("is an input of the same command"), UsageError);
  }
  CHECK(content_of(path) == "mine");
  write_file(folder.file("other"), "x");
}

TEST_CASE("a replaced file keeps who may read it; names may be as long as names can be") {
  const Folder folder;
  const std::string path = folder.file("secret"), longest = folder.file(std::string(255, 'n').c_str());
  write_file(path, "one");
  std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  write_file(path, "two");
  CHECK(std::filesystem::status(path).permissions() ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
  write_file(longest, "x");
  CHECK(content_of(longest) == "x");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 2);
}

/// Whether process `pid` has a file of `folder` open.
bool writes_in(pid_t pid, const std::filesystem::path& folder) {
  std::error_code gone;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone))
    if (std::filesystem::read_symlink(fd, gone).string().starts_with(folder.string())) return true;
  return false;
}

TEST_CASE("who is killed while writing leaves nothing behind and the old file as it was") {
  const Folder folder;
  const std::string path = folder.file("answer");
  write_file(path, "old");
  const std::string content(std::size_t{256} << 20U, 'x');
  const pid_t child = fork();
  if (child == 0) {
    write_file(path, content);
    _exit(0);
  }
  while (!writes_in(child, folder.path) && waitpid(child, nullptr, WNOHANG) == 0) usleep(100);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
  const auto size = std::filesystem::file_size(path);
  CHECK((size == 3 || size == content.size()));  // on a busy machine it may have come to its end
}

TEST_CASE("files that never end, and small ones that unpack to large ones") {
  const Folder folder;
  CHECK_THROWS_WITH_AS(read_file("/dev/zero", 1 << 20), doctest::Contains("larger than 1.0 MiB"), UsageError);
  const std::string bomb = folder.file("bomb.gz");
  gzFile file = gzopen(bomb.c_str(), "wb9");
  const std::string zeros(std::size_t{16} << 20U, '0');
  for (int i = 0; i < 5; ++i) gzwrite(file, zeros.data(), static_cast<unsigned>(zeros.size()));
  gzclose(file);
  CHECK_THROWS_WITH_AS(read_file(bomb), doctest::Contains("200 times its size"), UsageError);
  CHECK(inflates_too_much(std::size_t{1} << 30U, 1 << 20));
  CHECK_FALSE(inflates_too_much(std::size_t{1} << 30U, 50 << 20));
}

TEST_CASE("files") {
  const Folder folder;
  const std::string path = folder.file("a.txt");
  write_file(path, "one\ntwo\n");
  write_file(path, "three");
  CHECK(content_of(path) == "three");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);  // no temporary is left

  SUBCASE("gzip") {
    const std::string zipped = folder.file("b.json.gz");
    gzFile file = gzopen(zipped.c_str(), "wb");
    const std::string content(1'000'000, 'x');
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    CHECK(read_file(zipped) == content);
    std::filesystem::resize_file(zipped, std::filesystem::file_size(zipped) / 2);
    CHECK_THROWS_AS(read_file(zipped), UsageError);
  }
  SUBCASE("what cannot be read") {
    CHECK_THROWS_WITH_AS(read_file(folder.file("none")), doctest::Contains("no such file"), UsageError);
    CHECK_THROWS_WITH_AS(read_file(folder.path.string()), doctest::Contains("directory"), UsageError);
  }
  SUBCASE("what cannot be written") {
    CHECK_THROWS_WITH_AS(write_file(folder.file("no/such/folder"), "x"), doctest::Contains("cannot write"), UsageError);
    CHECK_THROWS_AS(write_file(folder.path.string(), "x"), UsageError);
  }
  SUBCASE("a link keeps its place, a device stays one") {
    std::filesystem::create_symlink(path, folder.file("link"));
    write_file(folder.file("link"), "four");
    CHECK(std::filesystem::is_symlink(folder.file("link")));
    CHECK(content_of(path) == "four");
    write_file("/dev/null", "x");
    CHECK(std::filesystem::is_character_file("/dev/null"));
  }
}

}  // namespace base_test
