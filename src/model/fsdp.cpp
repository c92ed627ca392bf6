#include "fsdp.hpp"

#include <algorithm>
#include <deque>
#include <numeric>

#include "ends.hpp"

namespace pipewright::model {
namespace {

using Elements = Unit::Elements;
constexpr const char* transposes = "transposed FP8 parameters";

Elements& operator+=(Elements& sum, const Parameter& p) {
  (p.expert ? sum.experts : sum.dense) += p.elements;
  if (p.fp8 && !p.expert) sum.fp8 += p.elements;
  return sum;
}

/// Of every layer, and last of the output layer with the final norm.
std::vector<Elements> elements_of(const std::vector<Parameter>& parameters, std::size_t layers) {
  std::vector<Elements> list(layers + 1);
  for (const Parameter& p : parameters)
    if (p.layer >= 0) list[std::min(layers, static_cast<std::size_t>(p.layer))] += p;
  return list;
}

/// megatron_fsdp.py: as stated, or twice the mean unit, at least 1e9 elements; the queue of reductions holds so many,
/// half of it is gathered ahead.
Int communication_unit(const std::vector<Elements>& units, scenario::OptInt stated) {
  if (stated) return *stated;
  Int sum = 0;
  for (std::size_t i = 0; i + 1 < units.size(); ++i) sum += units[i].sum();
  return std::max<Int>(1'000'000'000, units.size() > 1 ? 2 * (sum / static_cast<Int>(units.size() - 1)) : 0);
}

/// Steps around what a pass of a piece does.
class Around {
 public:
  Around(Piece& piece, Owners& owners, const Dimensions& d) : piece_(piece), owners_(owners), d_(d) {}

  /// Before the pass, in this order.
  void wait(Stream stream, std::int32_t before = INT32_MAX) {
    front_.push_back({Step::Kind::wait, static_cast<std::uint32_t>(stream), 0, before});
  }
  void gather(const std::string& what, const Elements& unit, std::int32_t before = INT32_MAX) {
    const auto one = [&](Int bytes, Int ranks, const Way& way) {
      if (bytes == 0 || ranks == 1) return;
      launch(front_, inside(collective_kernel(Purpose::dp, what, "all_gather", ranks, bytes, way, Stream::parameter)),
             before);
    };
    // The buckets of a unit, in FP8 and in bf16, are one call of NCCL (_coalescing_manager).
    one(unit.dense_bytes(), d_.dp * d_.cp, d_.dp_link);
    one(2 * unit.experts, d_.moe.edp, d_.moe.edp_link);
  }
  /// In backward, once a unit's gather has arrived (all_gather_and_wait_parameters_ready, fp8_create_transpose_cache):
  /// Hopper's FP8 products read transposed weights, which are not gathered.
  void transpose(const std::vector<std::pair<Int, Int>>& weights) {
    for (const auto& [rows, cols] : weights) {
      if (!d_.fsdp_keeps_transposes) hold(transposes, rows * cols);
      launch(front_, kernel("weight transpose in backward", {"transpose.fp8", {rows, cols}}));
    }
  }
  /// Those that the linear layers of a forward pass make on their own (TE update_usage), until after it.
  void hold_transposes(const std::vector<Step>& steps) {
    for (std::size_t at = 0; at < steps.size() && !d_.fsdp_keeps_transposes; ++at) {
      if (steps[at].kind != Step::Kind::launch) continue;
      const Kernel& kernel = piece_.kernels[steps[at].index];
      if (!kernel.name.ends_with(" weight transpose")) continue;
      hold(transposes, kernel.key.dims[0] * kernel.key.dims[1]);
      inside_.emplace_back(static_cast<std::ptrdiff_t>(at + inside_.size()), front_.back());
      front_.pop_back();
    }
  }
  /// From the pass' first finished weight gradient on until after it (get_main_grad).
  void hold_gradients(const std::vector<Step>& steps, Int bytes) {
    const std::string ending = d_.fused_gradients ? " wgrad" : " gradient accumulation";
    const auto first = std::ranges::find_if(steps, [&](const Step& step) {
      return step.kind == Step::Kind::launch && piece_.kernels[step.index].name.ends_with(ending);
    });
    const auto at = first == steps.end() ? 0 : first - steps.begin();
    const auto before = front_.size();
    hold("gradient bucket", bytes);
    if (front_.size() == before) return;
    inside_.emplace_back(at, front_.back());
    front_.pop_back();
  }
  /// From before the pass until after it.
  void hold(const std::string& owner, Int bytes, Stream stream = Stream::compute) {
    if (bytes == 0) return;
    const auto tensor = static_cast<std::uint32_t>(piece_.tensors.size());
    piece_.tensors.push_back(Tensor{owners_(owner), Bytes(bytes), stream});
    front_.push_back({Step::Kind::allocate, tensor});
    frees_.push_back({Step::Kind::free, tensor});
  }
  /// After the pass (_bucket_group_gradient_reduce): scaled in place, reduced, added to the rank's share. The scaling
  /// runs on the stream of the reduction and takes multiprocessors from what computes: it counts there.
  void reduce(const std::string& what, const Elements& unit, int parameters) {
    hooks(back_, "fsdp.reduce", parameters);
    const auto one = [&](std::initializer_list<Int> buckets, Int ranks, const Way& way) {
      const Int bytes = d_.gradient_bytes * std::accumulate(buckets.begin(), buckets.end(), Int{0});
      const auto each = [&](const std::string& name, const std::string& family, auto size) {
        for (const Int elements : buckets)
          if (elements > 0) launch(back_, inside(kernel(what + name, {family, {std::max<Int>(1, size(elements))}})));
      };
      if (d_.fsdp_scales) each(" scaling", "scale", [&](Int elements) { return d_.gradient_bytes * elements / 4; });
      if (ranks > 1 && bytes > 0)
        launch(back_,
               inside(collective_kernel(Purpose::dp, what, "reduce_scatter", ranks, bytes, way, Stream::gradient)));
      each(" addition", d_.gradient_bytes == 4 ? "add.f32" : "add", [&](Int elements) { return elements / ranks; });
    };
    one({unit.fp8, unit.dense - unit.fp8}, d_.dp * d_.cp, d_.dp_link);
    one({unit.experts}, d_.moe.edp, d_.moe.edp_link);
  }
  /// What hooks take of the host before the pass, after it.
  void hooks_before(const char* family, int launches) { hooks(front_, family, launches); }
  void hooks_after(const char* family, int launches) { hooks(back_, family, launches); }
  void wait_after(Stream stream) { back_.push_back({Step::Kind::wait, static_cast<std::uint32_t>(stream)}); }

  /// Writes them around the steps of a pass.
  void into(std::vector<Step>& steps) {
    for (const auto& [at, step] : inside_) steps.insert(steps.begin() + at, step);
    steps.insert(steps.begin(), front_.begin(), front_.end());
    steps.insert(steps.end(), back_.begin(), back_.end());
    steps.insert(steps.end(), frees_.begin(), frees_.end());
    front_.clear(), back_.clear(), frees_.clear(), inside_.clear();
  }

 private:
  /// The measured times of hooks hold the launches of what they launch.
  static Kernel inside(Kernel kernel) {
    kernel.within_call = true;
    kernel.launches = 0;
    return kernel;
  }
  void hooks(std::vector<Step>& steps, const char* family, int launches) {
    if (launches > 0) launch(steps, host_work("FSDP hooks", family, launches));
  }
  static Kernel kernel(const std::string& name, profile::Key key) {
    Kernel result;
    result.name = name;
    result.key = std::move(key);
    return result;
  }
  void launch(std::vector<Step>& steps, Kernel kernel, std::int32_t before = INT32_MAX) {
    steps.push_back({Step::Kind::launch, static_cast<std::uint32_t>(piece_.kernels.size()), 0, before});
    piece_.kernels.push_back(std::move(kernel));
  }

  Piece& piece_;
  Owners& owners_;
  const Dimensions& d_;
  std::vector<Step> front_, back_, frees_;
  std::vector<std::pair<std::ptrdiff_t, Step>> inside_;
};

}  // namespace

void place_units(const Dimensions& d, const scenario::Scenario& s, const ChunkShape& shape,
                 std::vector<LayerKind>& kinds) {
  const std::size_t layers = kinds.size();
  const auto all = chunk_parameters(d, s, shape);
  const auto units = elements_of(all, layers);
  const Int capacity = communication_unit(units, s.settings.suggested_communication_unit_size);
  struct Ahead {
    std::vector<Elements> units;
    Int elements = 0;
    std::ptrdiff_t until = 0;  ///< the farthest unit
  };
  const auto ahead = [&](std::size_t from, int step) {
    Ahead result{{}, 0, static_cast<std::ptrdiff_t>(from)};
    for (auto i = result.until + step; i >= 0 && i < static_cast<std::ptrdiff_t>(layers); i += step) {
      if (result.elements >= capacity / 2) break;
      result.units.push_back(units[static_cast<std::size_t>(i)]);
      result.elements += result.units.back().sum();
      result.until = i;
      if (d.fsdp_buffers) break;
    }
    return result;
  };
  std::vector<int> parameters(layers);
  for (const Parameter& p : all) {
    if (p.layer < 0 || static_cast<std::size_t>(p.layer) >= layers) continue;
    ++parameters[static_cast<std::size_t>(p.layer)];
    if (p.fp8 && d.precision.two_copies())
      kinds[static_cast<std::size_t>(p.layer)].unit.transposed.emplace_back(p.weight_out, p.weight_in);
  }
  // A unit's hook launches what no hook before it has: in forward from the first unit on, in backward from the last.
  std::ptrdiff_t launched = -1;
  for (std::size_t i = 0; i < layers; ++i) {
    const Ahead forward = ahead(i, 1);
    kinds[i].unit.parameters = parameters[i];
    kinds[i].unit.ahead = forward.units;
    kinds[i].unit.gathers = static_cast<int>(forward.until - launched);
    launched = forward.until;
  }
  launched = static_cast<std::ptrdiff_t>(layers);  // from here on: the lowest
  std::deque<Int> queue = {units[layers].sum()};
  for (std::size_t i = layers; i-- > 0;) {
    Unit& unit = kinds[i].unit;
    unit.own = units[i];
    unit.first = i == 0;
    unit.last = i + 1 == layers;
    if (!unit.last) unit.next = units[i + 1];
    const Ahead backward = ahead(i, -1);
    unit.below = backward.units;
    // Buckets are gathered in the order of their numbers (all_gather_params): of the last layer's first window its own
    // comes last.
    unit.back.assign(units.begin() + backward.until, units.begin() + launched);
    launched = backward.until;
    unit.queued.assign(queue.begin(), queue.end());
    for (Int held = std::accumulate(queue.begin(), queue.end(), Int{0}); held > capacity;
         held -= queue.front(), queue.pop_front()) {
    }
    queue.push_back(units[i].sum());
  }
}

void shard_layer(Piece& piece, Owners& owners, const Dimensions& d, const Unit& unit) {
  const auto gathered = [&](Around& around, const std::vector<Elements>& beside) {
    if (d.fsdp_buffers) return;
    // async_bucket_gather resizes their storage on the stream of gathers, whose memory serves no other stream.
    around.hold("gathered parameters", unit.own.bytes(), Stream::parameter);
    for (const Elements& each : beside) around.hold("gathered parameters", each.bytes(), Stream::parameter);
  };
  Around around(piece, owners, d);
  gathered(around, unit.ahead);
  around.hooks_before("fsdp.unit", unit.parameters);
  around.hooks_before("fsdp.gather", unit.gathers);
  if (unit.first) around.gather("unit all-gather", unit.own);
  around.wait(Stream::parameter);
  if (!unit.last) around.gather("unit all-gather, ahead", unit.next);
  around.hold_transposes(piece.forward);
  around.into(piece.forward);

  gathered(around, unit.below);
  around.hooks_before("fsdp.unit", unit.parameters);
  around.hooks_before("fsdp.gather", static_cast<int>(unit.back.size()));
  if (!d.fsdp_buffers) {
    around.hold_gradients(piece.backward, d.gradient_bytes * unit.own.sum());
    for (const Int elements : unit.queued) around.hold("gradient bucket", d.gradient_bytes * elements);
  }
  if (unit.last)
    around.wait(Stream::gradient);  // one communicator: after the output layer's reduction, which was launched before
  else
    around.wait(Stream::parameter);
  for (const Elements& each : unit.back)
    around.gather(unit.last ? "unit all-gather in backward" : "unit all-gather in backward, ahead", each);
  if (unit.last) around.wait(Stream::parameter);
  around.transpose(unit.transposed);
  around.reduce("unit gradient reduction", unit.own, unit.parameters);
  around.into(piece.backward);
}

void shard_end(Piece& piece, Owners& owners, const Dimensions& d, const scenario::Scenario& s, const ChunkShape& shape,
               bool first) {
  const auto parameters = chunk_parameters(d, s, shape);
  const auto units = static_cast<int>(shape.layers.size());
  Elements embedding;
  int in_embedding = 0, in_head = 0;
  for (const Parameter& p : parameters) {
    if (p.layer < 0) embedding += p;
    in_embedding += p.layer < 0;
    in_head += p.layer >= units;
  }
  const Elements head = elements_of(parameters, shape.layers.size()).back();
  Around around(piece, owners, d);
  if (first) {  // those of both ends stay gathered through a step
    around.hooks_before("fsdp.root", 1);
    around.gather("embedding all-gather", embedding, 1);
    around.wait(Stream::parameter, 1);
    around.gather("output layer all-gather", head, 1);
  } else {
    around.wait(Stream::parameter, 1);
  }
  around.into(piece.forward);
  const Elements& own = first ? embedding : head;
  around.hold_gradients(piece.backward, d.gradient_bytes * own.sum());
  if (!first) around.hooks_before("fsdp.root", units);
  around.reduce(first ? "embedding gradient reduction" : "output layer gradient reduction", own,
                first ? in_embedding : in_head);
  if (first) {
    around.wait_after(Stream::gradient);
    around.hooks_after("fsdp.reset", units);
  }
  around.into(piece.backward);
}

std::vector<Tensor> gathered_for_good(const std::vector<Parameter>& parameters, int layers, Owners& owners,
                                      const Dimensions& d) {
  auto units = elements_of(parameters, static_cast<std::size_t>(layers));
  Elements embedding;
  for (const auto& p : parameters)
    if (p.layer < 0) embedding += p;
  std::vector<Tensor> held;
  const auto hold = [&](const char* owner, Int bytes, Stream stream = Stream::compute) {
    if (bytes > 0) held.push_back(Tensor{owners(owner), Bytes(bytes), stream});
  };
  hold("gathered parameters", embedding.bytes(), Stream::parameter);
  hold("gathered parameters", units.back().bytes(), Stream::parameter);
  units.pop_back();
  if (!d.fsdp_buffers || units.empty()) return held;
  const Elements largest = *std::ranges::max_element(units, {}, &Elements::sum);
  for (int buffer = 0; buffer < 2; ++buffer) {
    hold("gathered parameters", largest.bytes());
    hold("gradient bucket", d.gradient_bytes * largest.sum());
  }
  return held;
}

std::vector<Buffer> unit_buffers(const std::vector<Parameter>& parameters, Int dense_ranks, Int expert_ranks) {
  std::vector<Buffer> buffers;
  constexpr std::pair<bool, bool> kinds[] = {{false, false}, {false, true}, {true, false}};
  for (const auto& [expert, fp8] : kinds) {  // _get_parameter_groups, step 1
    const Int ranks = expert ? expert_ranks : dense_ranks;
    std::vector<std::size_t> order;
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (parameters[p].expert == expert && parameters[p].fp8 == fp8 && !parameters[p].frozen) order.push_back(p);
    // Within a bucket the widest rows come first (_get_parameter_groups, step 3).
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      const Parameter &x = parameters[a], &y = parameters[b];
      return std::pair(x.layer, -x.elements) < std::pair(y.layer, -y.elements);
    });
    Buffer buffer;
    buffer.expert = expert;
    buffer.fp8 = fp8;
    for (std::size_t i = 0; i < order.size();) {
      const int layer = parameters[order[i]].layer;
      const Int begin = buffer.elements;
      for (; i < order.size() && parameters[order[i]].layer == layer; ++i) {
        buffer.parameters.emplace_back(buffer.elements, buffer.elements + parameters[order[i]].elements);
        buffer.of.push_back(order[i]);
        buffer.elements += parameters[order[i]].elements;
      }
      buffer.elements = begin + (buffer.elements - begin + ranks - 1) / ranks * ranks;
      buffer.buckets.emplace_back(begin, buffer.elements);
      buffer.last_layers.push_back(layer);
    }
    if (buffer.elements > 0) buffers.push_back(std::move(buffer));
  }
  return buffers;
}

}  // namespace pipewright::model
