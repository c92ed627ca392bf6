// The readers: what each form says, and that broken files give one clear error and never anything else.
#include <doctest/doctest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "pipewright/import.hpp"

namespace read_test {

using namespace pipewright;
namespace fs = std::filesystem;

namespace {

/// A folder that goes with the test.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("pipewright-import-" + std::to_string(getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path / name, std::ios::binary) << content;
    return (path / name).string();
  }
};

std::string packed(const std::string& text) {
  const std::string path = (fs::temp_directory_path() / ("pipewright-" + std::to_string(getpid()) + ".gz")).string();
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  fs::remove(path);
  return bytes;
}

std::string error_of(const std::string& path) {
  try {
    traces::read(path);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Two kernels and a memset of GPU 0, launched by thread 7; names need escapes, members come in unusual order.
const char* const chrome = R"json(
{"schemaVersion": 1, "note": {"a": ["}", "\"]"]},
 "deviceProperties": [{"totalGlobalMem": 85000000000, "name": "NVIDIA H100 80GB HBM3"}],
 "distributedInfo": {"nccl_version": "2.27.3", "rank": 5}, "cuda_runtime_version": 12090,
 "traceEvents": [
 {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
 {"ph": "X", "cat": "cpu_op", "name": "aten::add \"quoted\" {", "ts": 1000.5, "dur": 3, "args": {}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 7, "ts": 1001.25, "dur": 4.5,
  "args": {"correlation": 11}},
 {"args": {"correlation": 11, "stream": 7, "device": 0}, "dur": 20.125, "ts": 1010.5,
  "name": "nvjet_sm90_tst_128x128_64x4_1x2_h_bz_TNT", "cat": "kernel", "ph": "X"},
 {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 1008, "dur": 1,
  "args": {"device": 0, "stream": 7, "correlation": 10, "bytes": 4}},
 {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(x)", "ts": 1015, "dur": 100,
  "args": {"device": 0, "stream": 20, "correlation": 12, "Collective name": "all_to_allv"}}
 ], "traceName": "x"})json";

void execute(sqlite3* database, const std::string& sql) {
  char* message = nullptr;
  REQUIRE_MESSAGE(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, &message) == SQLITE_OK, message);
}

std::string nsys(const Folder& folder, const std::string& name, bool with_kernels) {
  const std::string path = (folder.path / name).string();
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &database) == SQLITE_OK);
  execute(database, "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)");
  execute(database,
          "INSERT INTO StringIds VALUES (1, 'nvjet_sm90_tst_128x128_64x4_1x2_h_bz_TNT'), (2, 'cudaLaunchKernel')");
  execute(database, "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER)");
  execute(database, "INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 150109880320)");
  if (with_kernels) {
    execute(database,
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
            "correlationId INTEGER, demangledName INTEGER, shortName INTEGER)");
    execute(database, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5000, 25000, 2, 7, 31, 1, 1)");
    execute(database,
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
            "correlationId INTEGER, bytes INTEGER, copyKind INTEGER)");
    execute(database, "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (6000, 7000, 2, 9, 32, 1024, 2)");
    execute(database,
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, "
            "correlationId INTEGER, nameId INTEGER)");
    execute(database, "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 2500, 281474993487873, 31, 2)");
  }
  sqlite3_close(database);
  return path;
}

}  // namespace

TEST_CASE("a Chrome trace, plain and packed") {
  const Folder folder;
  for (const auto& path : {folder.write("a.json", chrome), folder.write("a.json.gz", packed(chrome))}) {
    const auto trace = traces::read(path);
    CHECK(trace.rank == 5);
    CHECK(trace.device == "NVIDIA H100 80GB HBM3");
    CHECK(trace.memory.value == 85000000000);
    CHECK(trace.versions.at("nccl") == "2.27.3");
    CHECK(trace.versions.at("cuda") == "12.9");
    REQUIRE(trace.activities.size() == 3);
    CHECK(trace.activities[0].engine == traces::Engine::memset);  // by start, counted from the first
    CHECK(trace.activities[0].start == 0);
    CHECK_FALSE(trace.activities[0].launch.known());
    CHECK(trace.activities[1].start == 2500);
    CHECK(trace.activities[1].duration == 20125);
    CHECK(trace.activities[1].launch.start == 1001250 - 1008000);
    CHECK(trace.activities[1].launch.duration == 4500);
    CHECK(trace.activities[1].launch.thread == 7);
    CHECK(trace.activities[2].exchange == traces::Exchange::all_to_all);
    CHECK(trace.activities[2].stream == 20);
  }
}

TEST_CASE("the rank in the file's name wins over the trace's own") {
  const Folder folder;
  CHECK(traces::read(folder.write("a.r2.json", chrome)).rank == 2);
}

TEST_CASE("a kernel list") {
  const Folder folder;
  const auto trace = traces::read(folder.write("run.r3.json", R"json(
{"names": ["k", "Memcpy DtoH (Device -> Pinned)"], "rows": [[0, 7, 5.5, 2.0], [1, 9, 6.5, 1]]})json"));
  CHECK(trace.rank == 3);
  REQUIRE(trace.activities.size() == 2);
  CHECK(trace.activities[1].engine == traces::Engine::d2h);
  CHECK(trace.activities[1].start == 1000);
  CHECK(trace.activities[0].duration == 2000);
}

TEST_CASE("an Nsight Systems export") {
  const Folder folder;
  const auto trace = traces::read(nsys(folder, "run.r1.sqlite", true));
  CHECK(trace.rank == 1);
  CHECK(trace.device == "NVIDIA H200");
  REQUIRE(trace.activities.size() == 2);
  CHECK(trace.names[trace.activities[0].name] == "nvjet_sm90_tst_128x128_64x4_1x2_h_bz_TNT");
  CHECK(trace.activities[0].duration == 20000);
  CHECK(trace.activities[0].launch.start == -4000);
  CHECK(trace.activities[0].launch.duration == 1500);
  CHECK(trace.activities[1].engine == traces::Engine::d2h);
  CHECK(contains(error_of(nsys(folder, "none.r1.sqlite", false)),
                 "none.r1.sqlite: CUPTI_ACTIVITY_KIND_KERNEL: no such table: the trace has no kernels"));
  CHECK(contains(error_of(folder.write("text.r1.sqlite", "a text")), "not an SQLite database, as its name says"));
  CHECK(contains(error_of(folder.write("report.r1.nsys-rep", "x")), "`nsys export --type sqlite`"));
  CHECK(contains(error_of(folder.write("snapshot.r1.pickle", "\x80\x04\x95")), "a Python pickle, not a trace"));
  CHECK(contains(error_of(folder.write("cut.r1.sqlite", std::string("SQLite format 3\0", 16) + "rest")), "SQLite: "));
}

TEST_CASE("whatever a value of a trace is instead, the error names file, place and key") {
  const Folder folder;
  struct Value {
    std::string key, good;
  };
  const auto list = [](const std::vector<Value>& values, const std::string& changed, const std::string& bad) {
    std::string text;
    for (const auto& [key, good] : values) {
      if (key == changed && bad.empty()) continue;
      text += (text.empty() ? "" : ", ") + ("\"" + key + "\": ") + (key == changed ? bad : good);
    }
    return "{" + text + "}";
  };
  const std::vector<Value> kernel = {{"ph", "\"X\""},  {"cat", "\"kernel\""}, {"name", "\"k\""},
                                     {"ts", "1000.5"}, {"dur", "20"},         {"args", ""}};
  const std::vector<Value> args = {{"stream", "7"}, {"device", "0"}, {"correlation", "11"}};
  const std::vector<Value> launch = {{"ph", "\"X\""}, {"cat", "\"cuda_runtime\""},      {"ts", "1000"}, {"dur", "3"},
                                     {"tid", "5"},    {"args", "{\"correlation\": 11}"}};
  const std::vector<Value> info = {{"rank", "0"}, {"world_size", "4"}, {"nccl_version", "\"2.28\""}};
  const auto trace = [&](const std::string& of, const std::string& key, const std::string& bad) {
    const auto now = [&](const char* name) { return of == name ? key : std::string(); };
    auto event = kernel;
    event.back().good = list(args, now("args"), bad);
    return "{\"distributedInfo\": " + list(info, now("info"), bad) + ", \"traceEvents\": [" +
           list(launch, now("launch"), bad) + ", " + list(event, now("kernel"), bad) + "]}";
  };
  REQUIRE(error_of(folder.write("good.json", trace("", "", ""))) == "no error");
  struct Place {
    std::string of, where;
    const std::vector<Value>& values;
  };
  int refused = 0;
  for (const auto& [of, where, values] : {Place{"kernel", "traceEvents[1].", kernel},
                                          {"args", "traceEvents[1].args.", args},
                                          {"launch", "traceEvents[0].", launch},
                                          {"info", "distributedInfo.", info}}) {
    for (const auto& [key, good] : values) {
      for (const std::string bad : {"", "\"x\"", "{}", "[1]", "true", "NaN", "-1", "1e300"}) {
        const bool number = bad == "-1" || bad == "1e300";
        if (good.starts_with('"') && bad == "\"x\"") continue;                // another name, another kind of event
        if (key == "cat" || (key == "correlation" && bad.empty())) continue;  // as other events have it
        if (bad == "-1" && key != "dur" && key != "rank" && key != "world_size" && !good.starts_with('"')) continue;
        if (of == "info" && bad.empty() && key != "rank") continue;  // not said
        if (key == "args" && bad == "{}" && of == "launch") continue;
        CAPTURE(of);
        CAPTURE(key);
        CAPTURE(bad);
        const auto error = error_of(folder.write("bad.json", trace(of, key, bad)));
        CHECK(contains(error, "bad.json: "));
        if (of == "info" && bad.empty()) continue;  // the rank may stand in the file's name
        const auto place = bad == "NaN" ? where.substr(0, where.find_first_of(".")) : where + key;
        CHECK(contains(error, bad == "{}" && key == "args" ? where + "args.stream" : place));
        if (number && key == "dur" && bad == "-1") CHECK(contains(error, "a negative duration"));
        ++refused;
      }
    }
  }
  CHECK(refused > 80);

  const auto database = [&](const std::string& change) {
    const auto path = nsys(folder, "bad.r1.sqlite", true);
    sqlite3* handle = nullptr;
    REQUIRE(sqlite3_open(path.c_str(), &handle) == SQLITE_OK);
    execute(handle, change);
    sqlite3_close(handle);
    const auto error = error_of(path);
    std::filesystem::remove(path);
    return error;
  };
  const std::string table = "CUPTI_ACTIVITY_KIND_";
  for (const std::string kind : {"KERNEL", "MEMCPY", "RUNTIME"}) {
    for (const std::string column : {"start", "end", "streamId", "deviceId", "globalTid"}) {
      if ((kind == "RUNTIME") == (column == "streamId" || column == "deviceId")) continue;
      if (kind != "RUNTIME" && column == "globalTid") continue;
      for (const std::string bad : {"'x'", "NULL", "1.5", "x'00'"}) {
        CAPTURE(kind);
        CAPTURE(column);
        CAPTURE(bad);
        const auto error = database("UPDATE " + table + kind + " SET " + column + " = " + bad);
        CHECK(contains(error, "bad.r1.sqlite: " + table + kind + "." + column + ": row 1: "));
      }
    }
    CHECK(contains(database("UPDATE " + table + kind + " SET end = start - 1"),
                   table + kind + ".end: row 1: before its start, a negative duration"));
    CHECK(contains(database("ALTER TABLE " + table + kind + " RENAME COLUMN start TO begin"),
                   table + kind + ": SQLite: no such column"));
  }
  CHECK(contains(database("DELETE FROM StringIds"), "demangledName: row 1: names no string"));
  CHECK(contains(database("DROP TABLE StringIds"), "StringIds: no such table"));
  CHECK(contains(database("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; DROP TABLE StringIds"),
                 "not what `nsys export --type sqlite` writes"));
  CHECK(contains(database("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER); INSERT INTO "
                          "CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1)"),
                 "--cuda-graph-trace=node"));
}

TEST_CASE("times since 1970, as PyTorch before 2.3 writes them") {
  const Folder folder;
  const auto trace = traces::read(folder.write(
      "old.r0.json", R"json({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1680000000123456, "dur": 5,
       "args": {"stream": 7, "device": 0}}]})json"));
  CHECK(trace.activities.front().duration == 5000);
  CHECK(trace.began == 1'680'000'000'123'456'000);
}

TEST_CASE("wrong input: one clear error") {
  const Folder folder;
  const auto error = [&](const std::string& name, const std::string& content) {
    return error_of(folder.write(name, content));
  };
  CHECK(contains(error_of("/nowhere/x.r0.json"), "no such file"));
  CHECK(contains(error_of(folder.path.string()), "directory"));
  const std::string pipe = (folder.path / "pipe.r0.json").string();
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(contains(error_of(pipe), "no regular file"));  // and no waiting for who would write it
  CHECK(contains(error("empty.r0.json", ""), "truncated"));
  CHECK(contains(error("text.r0.json", "hello"), "not JSON around byte 0"));
  CHECK(contains(error("object.r0.json", R"({"a": 1})"), "neither a Chrome trace"));
  CHECK(contains(error("none.r0.json", R"({"traceEvents": []})"), "neither a Chrome trace"));
  CHECK(contains(error("word.r0.json", R"({"names": ["a", 1], "rows": [[0, 7, 0, 1]]})"),
                 "names[1]: expected a kernel's name, found 1"));
  CHECK(contains(error("lacks.r0.json", R"([{"ph": "M"}, {"ph": "X", "cat": "kernel", "name": "a", "dur": 1}])"),
                 "traceEvents[1].ts: is missing"));
  CHECK(contains(error("nan.r0.json", R"({"names": ["a"], "rows": [[0, 7, 0, 1], [0, nan, 0, 1]]})"),
                 "rows[1]: not JSON"));
  CHECK(contains(error("calls.r0.json", R"([{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}])"),
                 "the trace has no kernels"));
  CHECK(contains(error("index.r0.json", R"({"names": ["a"], "rows": [[1, 7, 0, 1]]})"), "not listed"));
  CHECK(contains(error("cells.r0.json", R"({"names": ["a"], "rows": [[0, 7, 0]]})"), "3 instead of 4"));
  CHECK(contains(error("negative.r0.json", R"({"names": ["a"], "rows": [[0, 7, 0, -1]]})"), "negative duration"));
  CHECK(contains(error("zero.r0.json", R"({"names": ["a"], "rows": [[0, 7, 0, 0]]})"), "duration 0"));
  CHECK(
      contains(error("far.r0.json", R"({"names": ["a"], "rows": [[0, 7, 0, 1], [0, 7, 1e10, 1]]})"), "an hour apart"));
  CHECK(contains(error("huge.r0.json", R"({"names": ["a"], "rows": [[0, 7, 1e300, 1]]})"), "makes no sense"));
  CHECK(contains(error("both.r0.json", R"({"names": ["a"], "rows": [[0, 7, 0, 50], [0, 7, 10, 50]]})"), "overlap"));
  CHECK(contains(error("unnamed.json", R"({"names": ["a"], "rows": [[0, 7, 0, 1]]})"), "NAME.r0.json.gz"));
  std::string two = chrome;
  two.replace(two.find("\"device\": 0, \"stream\": 20"), 11, "\"device\": 1");
  CHECK(contains(error("two.json", two), "one trace a rank"));
}

/// Two kernels, a copy and a memset of a window of one step, launched by thread 3, in a range.
const char* const recording =
    "pipewright recording 1\nM\tpid\t77\nM\trank\t2\nM\tdevice\tNVIDIA H200\nM\tmemory\t150000000000\n"
    "M\tsteps\t1\nM\tsteps_seen\t4\nM\tdropped\t0\n"
    "N\t0\t_ZN3foo3barEi\nN\t1\tMemset (Device)\nN\t2\tMemcpy DtoH\nN\t3\tforward\n"
    "A\t1\t1\t0\t7\t1000\t1400\t11\nA\t0\t0\t0\t7\t2000\t5000\t12\nA\t3\t2\t0\t9\t3000\t3500\t13\n"
    "L\t12\t3\t500\t520\nR\t3\t400\t600\nE\n";

TEST_CASE("a recording of an attached process") {
  const Folder folder;
  const auto trace = traces::read(folder.write("rec.rec", recording));
  CHECK(trace.rank == 2);
  CHECK(trace.device == "NVIDIA H200");
  CHECK(trace.memory.value == 150000000000);
  REQUIRE(trace.activities.size() == 3);
  CHECK(trace.names[trace.activities[1].name] == "foo::bar(int)");
  CHECK(trace.activities[1].start == 1000);
  CHECK(trace.activities[1].duration == 3000);
  CHECK(trace.activities[1].launch.start == -500);
  CHECK(trace.activities[1].launch.thread == 3);
  CHECK(trace.activities[0].engine == traces::Engine::memset);
  CHECK(trace.activities[2].engine == traces::Engine::d2h);
  REQUIRE(trace.ranges.size() == 1);
  CHECK(trace.ranges[0].name == "forward");
  CHECK(trace.ranges[0].end == -400);
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string text = recording;
    text.replace(text.find(from), from.size(), to);
    return error_of(folder.write("rec.r0.rec", text));
  };
  CHECK(contains(error("E\n", ""), "truncated"));
  CHECK(contains(error("dropped\t0", "dropped\t4"), "dropped 4 records"));
  CHECK(contains(error("steps\t1", "steps\t0"), "ended after 4 steps, before the window"));
  CHECK(contains(error("A\t0\t0\t0", "A\t0\t9\t0"), "not listed"));
  CHECK(contains(error("A\t0\t0\t0", "A\t1\t0\t0"), "the trace has no kernels"));
  CHECK(contains(error("\t2000\t5000", "\t2000\tx"), "rec.r0.rec:14"));
  CHECK(contains(error("R\t3", "Q\t3"), "begins with \"Q\""));
}

TEST_CASE("truncation and flipped bytes: an answer or a UsageError, for every form") {
  const Folder folder;
  std::ifstream in("data/dense.chrome.json.gz", std::ios::binary);
  const std::string real((std::istreambuf_iterator<char>(in)), {});
  REQUIRE(real.size() > 1000);
  std::ifstream list("data/dense.r1.json.gz", std::ios::binary);
  const std::string rows((std::istreambuf_iterator<char>(list)), {});
  std::ifstream database(nsys(folder, "whole.r1.sqlite", true), std::ios::binary);
  const std::string sqlite((std::istreambuf_iterator<char>(database)), {});
  std::mt19937 random(4);
  const auto survives = [&](const std::string& name, const std::string& content) {
    const auto path = folder.write(name, content);
    try {
      const auto trace = traces::read(path);
      CHECK_FALSE(trace.activities.empty());
    } catch (const UsageError& error) {
      CHECK(contains(error.what(), name));
    }
  };
  for (int i = 0; i < 300; ++i) {
    for (const auto& [name, whole] : {std::pair{"t.r0.json.gz", real},
                                      {"l.r0.json.gz", rows},
                                      {"n.r0.sqlite", sqlite},
                                      {"c.r0.json", std::string(chrome)},
                                      {"r.r0.rec", std::string(recording)}}) {
      const std::size_t cut = random() % (whole.size() - 1);
      if (std::string_view(name) != "n.r0.sqlite") {
        CHECK_MESSAGE(error_of(folder.write(name, whole.substr(0, cut))) != "no error", name << " cut at " << cut);
      } else {
        survives(name, whole.substr(0, cut));
      }
      std::string flipped = whole;
      for (int flips = 0; flips < 3; ++flips)
        flipped[random() % flipped.size()] ^= static_cast<char>(1U << random() % 8);
      survives(name, flipped);
    }
  }
}

TEST_CASE("a list without kernels, and a recording of the allocator, say what they are") {
  const Folder folder;
  CHECK(contains(error_of(folder.write("e.r1.json", R"({"names": ["k"], "rows": []})")), "has no kernels"));
  CHECK(contains(error_of(folder.write("m.r0.mem.json", R"({"rows": [["alloc", 1, 512, 0, 1]], "marks": [0]})")),
                 "pipewright replay-allocator"));
}

}  // namespace read_test
