#include "parameters.hpp"

#include <algorithm>
#include <numeric>

namespace pipewright::model {
namespace {

Int padded(Int value, Int divisor) { return (value + divisor - 1) / divisor * divisor; }

}  // namespace

std::vector<Parameter> chunk_parameters(const Dimensions& d, const scenario::Scenario& s, const ChunkShape& shape) {
  std::vector<Parameter> list;
  const auto weight = [&](Int in, Int out, bool fp8) { list.push_back({in * out, fp8 && d.fp8_parameters, in, out}); };
  const auto vector = [&](Int elements) { list.push_back({elements}); };
  const auto norm = [&](Int width) {
    vector(width);
    if (!d.rms_norm) vector(width);
  };
  if (shape.embedding) {
    vector(d.vocab * d.h);
    if (s.model.position_embedding_type == "learned_absolute") {
      vector(s.model.max_position_embeddings.value_or(s.model.seq_length) * d.h);
    }
  }
  for (const bool fp8 : shape.layer_is_fp8) {
    weight(d.q, d.h, fp8);
    if (d.bias) vector(d.h);
    norm(d.h);
    weight(d.h, d.qkv(), fp8);
    if (d.qkv_bias) vector(d.qkv());
    if (d.qk_norm) {
      norm(d.head_dim);
      norm(d.head_dim);
    }
    norm(d.h);
    weight(d.h, d.ffn_in(), fp8);
    if (d.bias) vector(d.ffn_in());
    weight(d.f, d.h, fp8);
    if (d.bias) vector(d.h);
  }
  if (shape.head) {
    norm(d.h);
    if (!shape.shares_embedding || !shape.embedding) list.push_back({d.vocab * d.h, false, d.h, d.vocab});
  }
  return list;
}

std::vector<Buffer> layout(const std::vector<Parameter>& parameters, Int bucket_size, Int ranks, bool distributed,
                           bool pad_for_bus_bandwidth) {
  std::vector<Buffer> buffers;
  for (const bool fp8 : {false, true}) {
    Buffer buffer;
    buffer.fp8 = fp8;
    Int end = 0, bucket_start = 0;
    const Int divisor = std::lcm(std::lcm(ranks, Int{128}), pad_for_bus_bandwidth ? Int{1} << 16 : Int{1});
    const auto close = [&] {
      if (distributed) end = padded(end, divisor);
      buffer.buckets.emplace_back(bucket_start, end);
      bucket_start = end;
    };
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
      if (p->fp8 != fp8) continue;
      const Int start = distributed ? padded(end, 64) : end;
      end = start + p->elements;
      buffer.parameters.emplace_back(start, end);
      if (bucket_size > 0 && end - bucket_start >= bucket_size) close();
    }
    if (end > bucket_start) close();
    buffer.elements = end;
    if (end > 0) buffers.push_back(std::move(buffer));
  }
  return buffers;
}

std::vector<Int> shards(const Buffer& buffer, Int rank, Int ranks) {
  std::vector<Int> result;
  std::size_t next = 0;
  for (const auto& [bucket_start, bucket_end] : buffer.buckets) {
    const Int part = (bucket_end - bucket_start) / ranks;
    const Int from = bucket_start + rank * part, to = from + part;
    for (; next < buffer.parameters.size() && buffer.parameters[next].first < bucket_end; ++next) {
      const auto& [start, end] = buffer.parameters[next];
      const Int owned = std::min(end, to) - std::max(start, from);
      if (owned > 0) result.push_back(owned);
    }
  }
  return result;
}

}  // namespace pipewright::model
