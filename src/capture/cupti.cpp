// CUPTI activity records of kernels, copies and memsets, tagged by external correlation. Dropped records are asked for
// with every buffer that comes back.
#include "cupti.hpp"

#include <cupti.h>

#include <cstdlib>
#include <mutex>
#include <stdexcept>

namespace pipewright::capture {
namespace {

constexpr std::size_t kBufferBytes = 4u << 20;
constexpr auto kTagKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

void check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  throw std::runtime_error(std::string("CUPTI: ") + what + ": " + (text != nullptr ? text : "unknown error"));
}

std::mutex mutex;
Batch collected;  // filled by CUPTI's callback, which has no user pointer

void add(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      collected.activities.push_back({k->name != nullptr ? k->name : "", static_cast<std::int64_t>(k->start),
                                      static_cast<std::int64_t>(k->end), k->correlationId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      collected.activities.push_back(
          {"memcpy", static_cast<std::int64_t>(m->start), static_cast<std::int64_t>(m->end), m->correlationId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      collected.activities.push_back(
          {"memset", static_cast<std::int64_t>(m->start), static_cast<std::int64_t>(m->end), m->correlationId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto* e = reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
      if (e->externalKind == kTagKind) collected.tags.push_back({e->correlationId, e->externalId});
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI buffer_requested(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer != nullptr ? kBufferBytes : 0;
  *max_records = 0;
}

void CUPTIAPI buffer_completed(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                               std::size_t valid) {
  const std::lock_guard<std::mutex> lock(mutex);
  CUpti_Activity* record = nullptr;
  while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) add(record);
  std::size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) collected.dropped += dropped;
  std::free(buffer);
}

class CuptiSource : public ActivitySource {
 public:
  CuptiSource() {
    check(cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed), "registering callbacks");
    enable(true);
  }
  ~CuptiSource() override {
    for (const auto kind : kinds) cuptiActivityDisable(kind);
    cuptiActivityFlushAll(1);
  }
  void push(std::uint64_t id) override { check(cuptiActivityPushExternalCorrelationId(kTagKind, id), "push"); }
  void pop() override {
    std::uint64_t id = 0;
    check(cuptiActivityPopExternalCorrelationId(kTagKind, &id), "pop");
  }
  Batch take() override {
    check(cuptiActivityFlushAll(1), "flush");
    const std::lock_guard<std::mutex> lock(mutex);
    Batch batch;
    std::swap(batch, collected);
    return batch;
  }
  void enable(bool on) override {
    for (const auto kind : kinds) check(on ? cuptiActivityEnable(kind) : cuptiActivityDisable(kind), "enable");
  }

 private:
  static constexpr CUpti_ActivityKind kinds[] = {
      CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,    CUPTI_ACTIVITY_KIND_MEMCPY,  CUPTI_ACTIVITY_KIND_MEMSET,
      CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER};
};

}  // namespace

std::unique_ptr<ActivitySource> cupti_source() { return std::make_unique<CuptiSource>(); }

}  // namespace pipewright::capture
