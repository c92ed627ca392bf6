// Nsight Systems exports (`nsys export --type sqlite`): tables and columns as its exporter schema names them
// (docs.nvidia.com/nsight-systems, "SQLite Schema Reference").
#include <sqlite3.h>

#include <memory>

#include "read_trace.hpp"

namespace pipewright::traces {
namespace {

class NsysReader {
 public:
  explicit NsysReader(const std::string& path) : builder_(path), database_(nullptr, sqlite3_close) {
    sqlite3* handle = nullptr;
    const int result = sqlite3_open_v2(path.c_str(), &handle, SQLITE_OPEN_READONLY, nullptr);
    database_.reset(handle);
    if (result != SQLITE_OK) throw refuse();
    note_input(path);
  }

  Trace read() {
    const auto missing = [&](const char* table, const std::string& what) {
      return UsageError({builder_.trace.file, 0}, table, "no such table: " + what);
    };
    const std::string kernels = "CUPTI_ACTIVITY_KIND_KERNEL";
    if (has("CUPTI_ACTIVITY_KIND_GRAPH_TRACE") && !empty("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"))
      throw UsageError({builder_.trace.file, 0}, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
                       "CUDA graphs were recorded as wholes; `nsys profile --cuda-graph-trace=node` records kernels");
    if (!has(kernels))
      throw missing(kernels.c_str(), has("StringIds") ? "the trace has no kernels (`nsys profile --trace=cuda,nvtx`)"
                                                      : "not what `nsys export --type sqlite` writes");
    if (!has("StringIds")) throw missing("StringIds", "kernels have no names");
    if (has("CUPTI_ACTIVITY_KIND_RUNTIME")) launches();
    rows(kernels,
         "k.start, k.end, k.streamId, k.deviceId, k.correlationId, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k "
         "LEFT JOIN StringIds s ON s.id = k.demangledName",
         [](sqlite3_stmt*) { return Engine::kernel; });
    if (has("CUPTI_ACTIVITY_KIND_MEMSET")) {
      rows("CUPTI_ACTIVITY_KIND_MEMSET",
           "start, end, streamId, deviceId, correlationId, 'Memset (Device)' FROM CUPTI_ACTIVITY_KIND_MEMSET",
           [](sqlite3_stmt*) { return Engine::memset; });
    }
    if (has("CUPTI_ACTIVITY_KIND_MEMCPY")) {
      rows("CUPTI_ACTIVITY_KIND_MEMCPY",
           "start, end, streamId, deviceId, correlationId, 'Memcpy', copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY",
           [](sqlite3_stmt* row) {
             constexpr int host_to_device = 1, device_to_host = 2;  // CUpti_ActivityMemcpyKind
             const int kind = sqlite3_column_int(row, 6);
             return kind == host_to_device ? Engine::h2d : kind == device_to_host ? Engine::d2h : Engine::d2d;
           });
    }
    if (has("TARGET_INFO_GPU")) {
      each("TARGET_INFO_GPU", "name, totalMemory FROM TARGET_INFO_GPU ORDER BY id LIMIT 1", [&](sqlite3_stmt* row) {
        builder_.trace.device = text(row, 0);
        builder_.trace.memory = Bytes(sqlite3_column_int64(row, 1));
      });
    }
    if (has("TARGET_INFO_SESSION_START_TIME")) {
      each("TARGET_INFO_SESSION_START_TIME", "utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1",
           [&](sqlite3_stmt* row) { builder_.clock_from = integer(row, 0, "utcEpochNs"); });
    }
    return builder_.finish();
  }

 private:
  using Statement = std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)>;

  /// `columns`: what stands behind SELECT. Errors name `table` and the number of the row.
  template <class OnRow>
  void each(const std::string& table, const std::string& columns, OnRow on_row) {
    table_ = table;
    row_ = 0;
    sqlite3_stmt* raw = nullptr;
    if (sqlite3_prepare_v2(database_.get(), ("SELECT " + columns).c_str(), -1, &raw, nullptr) != SQLITE_OK)
      throw refuse();
    const Statement statement(raw, sqlite3_finalize);
    int result = SQLITE_OK;
    while ((result = sqlite3_step(raw)) == SQLITE_ROW) {
      ++row_;
      on_row(raw);
    }
    if (result != SQLITE_DONE) throw refuse();
  }

  template <class EngineOf>
  void rows(const std::string& table, const std::string& columns, EngineOf engine_of) {
    each(table, columns, [&](sqlite3_stmt* row) {
      Activity activity;
      activity.start = nanoseconds(row, 0, "start");
      activity.duration = duration(row, activity.start);
      activity.stream = integer(row, 2, "streamId");
      activity.engine = engine_of(row);
      if (sqlite3_column_type(row, 5) != SQLITE_TEXT) throw wrong("demangledName", "names no string of StringIds");
      builder_.add(activity, text(row, 5), integer(row, 3, "deviceId"), sqlite3_column_int64(row, 4));
    });
  }

  void launches() {
    each("CUPTI_ACTIVITY_KIND_RUNTIME", "start, end, globalTid, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME",
         [&](sqlite3_stmt* row) {
           const std::int64_t start = nanoseconds(row, 0, "start");
           // globalTid: the process in the upper bits, the thread in the lower 24.
           builder_.add_launch(sqlite3_column_int64(row, 3),
                               {start, duration(row, start), integer(row, 2, "globalTid") & 0xffffff});
         });
  }

  std::int64_t integer(sqlite3_stmt* row, int column, const char* name) const {
    if (sqlite3_column_type(row, column) != SQLITE_INTEGER)
      throw wrong(name, "expected an integer, found \"" + text(row, column).substr(0, 60) + "\"");
    return sqlite3_column_int64(row, column);
  }

  std::int64_t nanoseconds(sqlite3_stmt* row, int column, const char* name) const {
    const std::int64_t value = integer(row, column, name);
    if (value < -latest_time || value > latest_time)
      throw wrong(name, "a time that makes no sense: " + std::to_string(value) + " ns");
    return value;
  }
  /// From start, column 0, to end, column 1.
  std::int64_t duration(sqlite3_stmt* row, std::int64_t start) const {
    const std::int64_t ns = nanoseconds(row, 1, "end") - start;
    if (ns < 0) throw wrong("end", "before its start, a negative duration");
    return ns;
  }

  UsageError wrong(const char* column, const std::string& why) const {
    return UsageError({builder_.trace.file, 0}, table_ + "." + column, "row " + std::to_string(row_) + ": " + why);
  }

  /// Views do not count: what the exporter writes are tables, and a view can compute without end.
  bool has(const std::string& table) {
    bool found = false;
    each("sqlite_master", "1 FROM sqlite_master WHERE type = 'table' AND name = '" + table + "'",
         [&](sqlite3_stmt*) { found = true; });
    return found;
  }

  bool empty(const std::string& table) {
    bool found = false;
    each(table, "1 FROM " + table + " LIMIT 1", [&](sqlite3_stmt*) { found = true; });
    return !found;
  }

  static std::string text(sqlite3_stmt* row, int column) {
    const unsigned char* value = sqlite3_column_text(row, column);
    return value == nullptr ? std::string() : reinterpret_cast<const char*>(value);
  }
  UsageError refuse() {
    return UsageError({builder_.trace.file, 0}, table_ == "sqlite_master" ? "" : table_,
                      std::string("SQLite: ") + sqlite3_errmsg(database_.get()));
  }

  TraceBuilder builder_;
  std::string table_;  ///< that is read, and its row
  std::int64_t row_ = 0;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> database_;
};

}  // namespace

Trace read_nsys(const std::string& path) { return NsysReader(path).read(); }

}  // namespace pipewright::traces
