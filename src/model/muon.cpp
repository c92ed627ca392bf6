// A matrix of m x n elements, m the smaller (newton_schulz, 2D):
//
//   X = momentum / |momentum|, in bf16       then muon_num_ns_steps times
//   A = X X'            m x m x n
//   B = b A + c A A     m x m x m
//   X = a X + B X       m x n x m
//
// muon_fp32_matmul_prec medium is bf16 in and out; tensor-parallel ranks orthogonalise their own parts (muon_tp_mode
// blockwise, the default).
#include "muon.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace pipewright::model {
namespace {

/// What is orthogonalised of a matrix: itself, or its queries (and their gates), keys and values. Parts of a group are
/// no heads (optimizer/__init__.py, is_qkv).
std::vector<Matrix> parts(const Dimensions& d, const Matrix& matrix) {
  if (!matrix.qkv || !d.muon_splits_qkv || d.group_ranks > 1) return {{matrix.rows, matrix.cols}};
  std::vector<Matrix> all(d.output_gate ? 2 : 1, {d.q, matrix.cols});
  all.insert(all.end(), 2, {d.kv, matrix.cols});
  return all;
}

std::pair<Int, Int> by_size(const Matrix& matrix) { return std::minmax(matrix.rows, matrix.cols); }

Int padded_to(Int value, Int divisor) { return (value + divisor - 1) / divisor * divisor; }

/// PyTorch's elementwise kernels where one operand is the transpose of a matrix, which they read against its rows: so
/// many times as long as without. One H100, torch 2.11, 15 matrices of 0.5 to 268 million elements; from 8 million on
/// copies in bf16 5.0 to 6.0, additions in fp32 2.1 to 2.4.
constexpr double transposed_copy = 5.6, transposed_addition = 2.2;

class Kernels {
 public:
  /// `count` matrices one after the other. Launches cost what the loop around them does (host_family).
  void add(const std::string& what, profile::Key key, double count) {
    Kernel kernel;
    kernel.name = "muon " + what;
    kernel.key = std::move(key);
    kernel.share = count;
    kernel.launches = 0;
    list_.push_back(std::move(kernel));
  }
  /// Whose launches the last one stands for.
  void costs(const char* host_family, Int count) {
    list_.back().host_family = host_family;
    list_.back().launches = static_cast<int>(std::min<Int>(count, 1'000'000));
  }
  std::vector<Kernel> take() { return std::move(list_); }

 private:
  std::vector<Kernel> list_;
};

}  // namespace

double orthogonalization_flop(const Dimensions& d, const Matrix& matrix) {
  double sum = 0;
  for (const Matrix& part : parts(d, matrix)) {
    const auto [m, n] = by_size(part);
    sum +=
        2.0 * static_cast<double>(m) * static_cast<double>(m) * (2 * static_cast<double>(n) + static_cast<double>(m));
  }
  return sum * static_cast<double>(d.muon_steps);
}

std::vector<Kernel> orthogonalization(const Dimensions& d, const std::vector<Matrix>& matrices) {
  std::map<std::tuple<Int, Int, bool>, Int> counts;
  for (const Matrix& matrix : matrices) ++counts[{matrix.rows, matrix.cols, matrix.qkv}];
  Kernels kernels;
  for (const auto& [shape, count] : counts) {
    const Matrix matrix{std::get<0>(shape), std::get<1>(shape), std::get<2>(shape)};
    const Int all = matrix.elements();
    const auto matrices_of_it = static_cast<double>(count);
    kernels.add("weight decay", {"scale", {all}}, matrices_of_it);
    kernels.costs("muon.matrix", count);
    kernels.add("momentum", {"add.f32", {all}}, matrices_of_it);
    if (d.muon_nesterov) kernels.add("nesterov", {"add.f32", {all}}, matrices_of_it);
    const auto pieces = parts(d, matrix);
    bool tall = false;  // X is the transpose then, and what is added to the parameters a transpose again
    for (const Matrix& part : pieces) {
      const auto [m, n] = by_size(part);
      tall = part.rows > part.cols;
      const Int elements = part.elements();
      const double steps = static_cast<double>(d.muon_steps), times = matrices_of_it * steps;
      if (pieces.size() > 1) kernels.add("split", {"scale", {elements}}, matrices_of_it);
      kernels.add("norm", {"l2norm", {elements}}, matrices_of_it);
      kernels.costs("muon.part", count);
      kernels.add("normalization", {"scale", {elements}}, matrices_of_it);
      kernels.add("cast", {"cast.f32_bf16", {elements}}, matrices_of_it);
      kernels.add("X X'", {"gemm.bf16.tn", {m, m, n}}, times);
      kernels.costs("muon.step", count * d.muon_steps);
      // torch.addmm copies what it adds to, A and X, into its result first; the first X with the transpose's strides.
      kernels.add("copy of A", {"copy.d2d", {2 * m * m}}, times);
      kernels.add("A A", {"gemm.bf16.nn", {m, m, m}}, times);
      kernels.add("copy of X", {"copy.d2d", {2 * elements}},
                  matrices_of_it * (tall ? steps - 1 + transposed_copy : steps));
      kernels.add("B X", {"gemm.bf16.nn", {n, m, m}}, times);
      kernels.add("cast back", {"cast.bf16_f32", {elements}}, matrices_of_it);
      kernels.add("scaling", {"scale", {elements}}, 2 * matrices_of_it);
    }
    if (pieces.size() > 1) kernels.add("joined", {"scale", {all}}, matrices_of_it);
    kernels.add("update", {"add.f32", {all}}, matrices_of_it * (tall && pieces.size() == 1 ? transposed_addition : 1));
  }
  return kernels.take();
}

void orthogonalize(const Dimensions& d, const std::vector<Matrix>& matrices, UpdateBuilder& update) {
  const auto fp32 = [&](Int elements) { return update.allocate("orthogonalization", 4 * elements); };
  const auto bf16 = [&](Int elements) { return update.allocate("orthogonalization", 2 * elements); };
  std::uint32_t momentum = no_tensor, added = no_tensor;  // variables of the loop: grad, orth_grad
  for (const Matrix& matrix : matrices) {
    update.release(momentum);
    if (d.muon_nesterov) momentum = fp32(matrix.elements());
    const auto pieces = parts(d, matrix);
    std::vector<std::uint32_t> copies, results;
    if (pieces.size() > 1)
      for (const Matrix& part : pieces) copies.push_back(fp32(part.elements()));
    for (const Matrix& part : pieces) {
      const Int all = part.elements(), squared = std::min(part.rows, part.cols) * std::min(part.rows, part.cols);
      auto normalized = fp32(all), x = bf16(all);
      update.release(normalized);
      for (Int step = 0; step < d.muon_steps; ++step) {
        auto a = bf16(squared), b = bf16(squared);
        const auto next = bf16(all);
        update.release(a, b, x);
        x = next;
      }
      auto result = fp32(all);
      update.release(x);
      auto scaled = fp32(all);
      results.push_back(fp32(all));  // scaled once more
      update.release(scaled, result);
    }
    if (pieces.size() > 1) {
      for (auto& copy : copies) update.release(copy);
      const auto joined = fp32(matrix.elements());
      for (auto& result : results) update.release(result);
      results = {joined};
    }
    update.release(added);
    added = results.front();
  }
  update.release(added, momentum);
}

std::vector<Int> dealt(const std::vector<Int>& elements, Int ranks) {
  std::vector<std::size_t> order(elements.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::less(), [&](std::size_t i) { return elements[i]; });
  std::vector<Int> owners(elements.size());
  Int turn = 0;
  for (const std::size_t i : order) {
    owners[i] = turn < ranks ? turn : 2 * ranks - 1 - turn;
    turn = (turn + 1) % (2 * ranks);
  }
  return owners;
}

void lay_out_whole(Buffer& buffer, const std::vector<Parameter>& parameters, const std::vector<std::size_t>& which,
                   Int bucket_size, Int ranks, Int divisor) {
  constexpr double padding_floor = 0.9;  // PADDING_FLOOR
  const Int shard_divisor = std::lcm(Int{64}, divisor / ranks);
  std::vector<std::size_t> chunk;
  Int elements = 0, largest = 0;
  const auto emit = [&] {
    if (chunk.empty()) return;
    std::ranges::stable_sort(chunk, std::greater(), [&](std::size_t i) { return parameters[i].elements; });
    std::vector<std::vector<std::pair<std::size_t, Int>>> shards(static_cast<std::size_t>(ranks));  // parameter, start
    std::vector<Int> ends(static_cast<std::size_t>(ranks), 0);
    int layer = parameters[chunk.front()].layer;
    for (const std::size_t i : chunk) {
      const auto shard = static_cast<std::size_t>(std::ranges::min_element(ends) - ends.begin());
      const Int start = padded_to(ends[shard], 64);
      shards[shard].emplace_back(i, start);
      ends[shard] = start + parameters[i].elements;
      layer = std::min(layer, parameters[i].layer);  // the backward of the first layer is the last
    }
    const Int shard_size = padded_to(*std::ranges::max_element(ends), shard_divisor), begin = buffer.elements;
    for (std::size_t shard = 0; shard < shards.size(); ++shard)
      for (const auto& [i, start] : shards[shard]) {
        const Int at = begin + static_cast<Int>(shard) * shard_size + start;
        buffer.parameters.emplace_back(at, at + parameters[i].elements);
        buffer.of.push_back(i);
        buffer.owners.push_back(static_cast<Int>(shard));
      }
    buffer.elements = begin + ranks * shard_size;
    buffer.buckets.emplace_back(begin, buffer.elements);
    buffer.last_layers.push_back(layer);
    chunk.clear();
    elements = largest = 0;
  };
  for (const std::size_t i : which) {
    chunk.push_back(i);
    elements += parameters[i].elements;
    largest = std::max(largest, parameters[i].elements);
    const auto floor = static_cast<Int>(static_cast<double>(ranks * largest) * padding_floor);
    if (bucket_size > 0 && elements >= std::max(bucket_size, floor)) emit();
  }
  emit();
}

}  // namespace pipewright::model
