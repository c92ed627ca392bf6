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
    if (!has("CUPTI_ACTIVITY_KIND_KERNEL")) throw UsageError({builder_.trace.file, 0}, {}, "the trace has no kernels");
    if (!has("StringIds"))
      throw UsageError({builder_.trace.file, 0}, "StringIds", "no such table: kernels have no names");
    if (has("CUPTI_ACTIVITY_KIND_RUNTIME")) launches();
    rows(
        "SELECT k.start, k.end, k.streamId, k.deviceId, k.correlationId, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.demangledName",
        [](sqlite3_stmt*) { return Engine::kernel; });
    if (has("CUPTI_ACTIVITY_KIND_MEMSET")) {
      rows("SELECT start, end, streamId, deviceId, correlationId, 'Memset (Device)' FROM CUPTI_ACTIVITY_KIND_MEMSET",
           [](sqlite3_stmt*) { return Engine::memset; });
    }
    if (has("CUPTI_ACTIVITY_KIND_MEMCPY")) {
      rows("SELECT start, end, streamId, deviceId, correlationId, 'Memcpy', copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY",
           [](sqlite3_stmt* row) {
             constexpr int host_to_device = 1, device_to_host = 2;  // CUpti_ActivityMemcpyKind
             const int kind = sqlite3_column_int(row, 6);
             return kind == host_to_device ? Engine::h2d : kind == device_to_host ? Engine::d2h : Engine::d2d;
           });
    }
    if (has("TARGET_INFO_GPU")) {
      each("SELECT name, totalMemory FROM TARGET_INFO_GPU ORDER BY id LIMIT 1", [&](sqlite3_stmt* row) {
        builder_.trace.device = text(row, 0);
        builder_.trace.memory = Bytes(sqlite3_column_int64(row, 1));
      });
    }
    return builder_.finish();
  }

 private:
  using Statement = std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)>;

  template <class OnRow>
  void each(const char* sql, OnRow on_row) {
    sqlite3_stmt* raw = nullptr;
    if (sqlite3_prepare_v2(database_.get(), sql, -1, &raw, nullptr) != SQLITE_OK) throw refuse();
    const Statement statement(raw, sqlite3_finalize);
    int result = SQLITE_OK;
    while ((result = sqlite3_step(raw)) == SQLITE_ROW) on_row(raw);
    if (result != SQLITE_DONE) throw refuse();
  }

  template <class EngineOf>
  void rows(const char* sql, EngineOf engine_of) {
    each(sql, [&](sqlite3_stmt* row) {
      Activity activity;
      activity.start = nanoseconds(row, 0);
      activity.duration = nanoseconds(row, 1) - activity.start;
      activity.stream = sqlite3_column_int64(row, 2);
      activity.engine = engine_of(row);
      builder_.add(activity, text(row, 5), sqlite3_column_int64(row, 3), sqlite3_column_int64(row, 4));
    });
  }

  void launches() {
    each("SELECT start, end, globalTid, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME", [&](sqlite3_stmt* row) {
      const std::int64_t start = nanoseconds(row, 0);
      // globalTid: the process in the upper bits, the thread in the lower 24.
      builder_.add_launch(sqlite3_column_int64(row, 3),
                          {start, nanoseconds(row, 1) - start, sqlite3_column_int64(row, 2) & 0xffffff});
    });
  }

  std::int64_t nanoseconds(sqlite3_stmt* row, int column) const {
    const std::int64_t value = sqlite3_column_int64(row, column);
    if (value < -latest_time || value > latest_time)
      throw UsageError({builder_.trace.file, 0}, {}, "a time that makes no sense: " + std::to_string(value) + " ns");
    return value;
  }

  /// Views do not count: what the exporter writes are tables, and a view can compute without end.
  bool has(const std::string& table) {
    bool found = false;
    each(("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '" + table + "'").c_str(),
         [&](sqlite3_stmt*) { found = true; });
    return found;
  }

  static std::string text(sqlite3_stmt* row, int column) {
    const unsigned char* value = sqlite3_column_text(row, column);
    return value == nullptr ? std::string() : reinterpret_cast<const char*>(value);
  }
  UsageError refuse() {
    return UsageError({builder_.trace.file, 0}, {}, std::string("SQLite: ") + sqlite3_errmsg(database_.get()));
  }

  TraceBuilder builder_;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> database_;
};

}  // namespace

Trace read_nsys(const std::string& path) { return NsysReader(path).read(); }

}  // namespace pipewright::traces
