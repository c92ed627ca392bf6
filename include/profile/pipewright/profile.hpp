// A profile: what was measured on a machine. Kernel times by family and shape, links, clocks under load, costs of the
// host, memory outside PyTorch's allocator; each number with its origin. File format: src/profile/FORMAT.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/base.hpp"

namespace pipewright::profile {

/// How a number came about; a result is as weak as its weakest input (ordered from strong to weak). `published`: taken
/// from somebody else's published measurements (docs/public-tables.md); its name is "public".
enum class Origin : std::uint8_t { measured, interpolated, published, derived };
std::string_view name(Origin origin);

/// What is timed: a family ("gemm.bf16.tn", "rmsnorm.forward", ...; all are listed in families()) and its dimensions in
/// the family's order (for a gemm m, n, k). Two kernels with the same key take the same time on a cool, idle part.
struct Key {
  std::string family;
  std::vector<std::int64_t> dims;
  friend auto operator<=>(const Key&, const Key&) = default;
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
};

/// Which part of the chip a kernel works: decides how it slows when the power limit lowers the clock (Clocks below).
/// NCCL's kernels over NVLink copy by the multiprocessors: collectives along a ring, exchanges with all peers.
/// `network`: families of either; what a network decides does not slow.
enum class Load : std::uint8_t { matrix, attention, memory, network, none, ring, peers };

/// A family: names of its dimensions, its work in FLOP and its traffic in bytes (read + written, each tensor once);
/// interpolation is over the achieved rate, roofline shares are printed from it.
struct Family {
  std::string name;
  std::vector<std::string> dims;
  Load load;
  std::function<double(const std::vector<std::int64_t>&)> flop;
  std::function<double(const std::vector<std::int64_t>&)> bytes;
  std::string what;  ///< one line for `profile show` and FORMAT.md
  /// Kernels of every expert one by one, dims experts and rows: a time is that of one expert's rows, times experts.
  bool each_expert = false;
  /// Dimensions along which 16-bit operands of a matrix product lie in memory: tensor cores are fed at full speed only
  /// where they are multiples of 16 bytes (docs.nvidia.com/cuda/cublas, "Tensor Core Usage").
  std::vector<std::size_t> contiguous = {};
};
const std::vector<Family>& families();
/// By name; "all_gather.nvlink" finds "all_gather.<link>". Throws InternalError for an unknown name; find: nullptr.
const Family& family(const std::string& name);
const Family* find_family(const std::string& name);

/// What quantization pads an expert's rows to in a product of this family, "gemm.grouped.*" (Megatron moe_utils.py,
/// get_align_size_for_quantization; NVFP4: fp4_utils.py, get_fp4_align_size, for TE's grouped casts).
std::int64_t row_alignment(std::string_view grouped_family);

/// One measured shape: median of the samples on a cool part at full clock, their relative spread (half the distance
/// between the 16th and 84th percentile, over the median) and their number.
struct Sample {
  std::vector<std::int64_t> dims;
  double ns = 0;
  double spread = 0;
  int count = 0;
  Origin origin = Origin::measured;
  std::string source;  ///< empty: the profile's own capture; else what it was derived from
};

/// A time with its origin; `spread` is relative (one standard deviation), interpolation error included.
struct Timing {
  double ns = 0;
  double spread = 0;
  Origin origin = Origin::measured;
  std::string profile;  ///< name of the profile that answered
  std::string note;     ///< why it is not measured: nearest shapes used, or what it was derived from
};

/// Slow-down of kernels by sustained load: a part at its power limit lowers its clock. Measured by `capture
/// --sustained` at several duty cycles (share of time busy over `window_ms`), with a transformer layer's kernels and
/// with kernels of one kind alone: kinds draw different power.
struct ClockRow {
  double duty = 0;       ///< share of time in which the part computes
  double mhz = 0;        ///< mean SM clock while busy
  double watts = 0;      ///< mean board power
  double matrix = 1;     ///< time of matrix kernels over their cool time
  double attention = 1;  ///< the same for attention
  double memory = 1;     ///< the same for memory-bound kernels
};
struct Clocks {
  std::string precision;  ///< "bf16" or "fp8": what the measured layer computed in
  double cool_mhz = 0;
  double limit_watts = 0;
  std::vector<ClockRow> rows;  ///< ascending duty
  /// What ran: "layer", or kernels of one kind, "matrix", "attention", "memory", or "matrix+memory" by turns.
  std::string kernels = "layer";
  /// Of the busy time on a cool part, the share of each kind.
  double matrix_share = 0, attention_share = 0, memory_share = 0;
  /// Power above idle of a part that is always busy, at full clock: the slope of watts over duty below the limit.
  double busy_watts() const;
  /// Duty at which the clock falls to `mhz`: linear between the rows at the power limit, and on beyond the last.
  /// nullopt: fewer than two such rows, or a clock above theirs.
  std::optional<double> duty_at(double mhz) const;
  /// Factor on a cool kernel time at this duty, linear between rows, held before the first, and on beyond the last: a
  /// load heavier than the one measured asks for more than the whole part's power.
  double slowdown(Load load, double duty) const;
  /// The clock of the first row over that at this duty, in the same way.
  double slower_clock(double duty) const;
  /// What load adds to kernel times, times `factor`.
  void scale_load(double factor);

 private:
  double at(double ClockRow::*column, double duty) const;  ///< there are rows
};

/// Expected largest of `count` standard normal deviates; 0 for one.
double expected_largest(std::int64_t count);

/// How a run's recent load slows its kernels. Kinds of kernels draw different power, and the power limit acts on its
/// sum: a busy moment counts as `weight` of one of the layer that the law was measured with (FORMAT.md, Clocks).
struct ClockLaw {
  const Clocks* layer = nullptr;
  double matrix = 1, attention = 1, memory = 1;  ///< the layer's duty over this kind's at the same clock
  double exchange = 0;                           ///< NCCL's collectives: power above idle over the layer's
  double ring = 0, peers = 0;                    ///< of their time over NVLink, the share that grows as the clock falls
  double fluctuation = 0;  ///< of what load adds to kernel times, from one tick of the controller to the next, relative
  double chips = 0;        ///< the same from one chip to the next
  /// What load adds, for GPUs that wait for each other: of those that do every few milliseconds the one decides whose
  /// clock is low for the moment, of all that share a step's work (`stage`) the one whose chip is slower all the time.
  /// Each is its spread x the expected largest of so many standard normal deviates; 1 for one GPU.
  double lockstep(std::int64_t gpus, std::int64_t stage) const;
  double together = 1;  ///< lockstep() of the GPUs that the law is applied to
  /// The law of a GPU that waits for `gpus` - 1 others inside every layer and for `stage` - 1 at every step's end.
  ClockLaw among(std::int64_t gpus, std::int64_t stage) const;
  double weight(Load load) const;
  /// Factor on a cool kernel time: Clocks::slowdown(), what it adds taken `together`.
  double slowdown(Load load, double weighted_duty) const;
};

/// A way between GPUs or hosts. Times by size come from families "send_recv.<link>", "all_gather.<link>", ...; a link
/// without measured families is derived from latency and bandwidth.
struct Link {
  std::string name;  ///< "nvlink", "shared host memory", "infiniband"
  double latency_us = 0;
  double gbytes_per_s = 0;       ///< one direction, one GPU
  std::int64_t eager_bytes = 0;  ///< a send up to this size completes without its receiver (channels x buffer)
  Origin origin = Origin::measured;
  std::string source;
  std::int64_t gpus_per_port = 1;  ///< GPUs of a node that share one network port, and its bandwidth
  std::int64_t nvlink_domain = 0;  ///< of a link between domains that was measured: GPUs of one of them; 0: not said
};

/// Everything else that is one number: "host.<what>_us", "memory.<what>_bytes", ... with its source. Names: FORMAT.md.
struct Scalar {
  double value = 0;
  double spread = 0;
  Origin origin = Origin::measured;
  std::string source;
};

/// How well a family is interpolated: every sample that lies inside the range of the others, predicted from them.
struct Interpolation {
  double error = 0;  ///< relative, root mean square
  int tests = 0;     ///< samples that could be tested
};
Interpolation leave_one_out(const std::string& family_name, const std::vector<Sample>& samples);

/// Which of the operands A and B of a product are transposed, as cuBLAS counts.
enum class Layout : std::uint8_t { tn, nn, nt };
std::string_view name(Layout layout);

/// What a GPU is, beside what was timed on it: libraries size their grids, buffers and copies by it.
struct Device {
  std::string name;                             ///< "NVIDIA H200", as CUDA gives it
  std::int64_t multiprocessors = 0;             ///< 0: the profile does not say what the GPU is
  std::int64_t threads_per_multiprocessor = 0;  ///< resident at most
  int compute_capability = 0;                   ///< 10 x major + minor: 90
  Bytes l2;
  std::vector<Layout> fp8_layouts;      ///< that its tensor cores take FP8 operands in; none: no FP8
  Bytes te_workspace, torch_workspace;  ///< of cuBLAS: that of Transformer Engine, and of torch.matmul
  bool known() const { return multiprocessors > 0; }
  friend bool operator==(const Device&, const Device&) = default;
};
/// The device of these counts (cudaDeviceProp), with what the libraries decide by its compute capability.
Device device(std::string name, std::int64_t multiprocessors, std::int64_t threads_per_multiprocessor,
              int compute_capability, Bytes l2);
std::string capability_text(int compute_capability);  ///< 90: "9.0"
/// The data sheet's of a GPU of this name; without counts where there is none.
Device device_named(const std::string& name);
/// What a GPU is taken for where nothing says what it is (a profile captured before profiles said it, on a GPU without
/// a data sheet): an H200 SXM, from whose measurements the other rooms' constants are.
const Device& assumed_device();

class Profile {
 public:
  std::string name;                             ///< "h200-sxm"
  Device device;                                ///< a profile without one is that of its device's data sheet
  Origin origin = Origin::measured;             ///< of most entries; a derived profile says so everywhere it is used
  Bytes memory;                                 ///< usable device memory (cudaMemGetInfo's total)
  std::map<std::string, std::string> versions;  ///< driver, cuda, cublaslt, cudnn, nccl, pipewright, captured (UTC)
  std::vector<std::string> provenance;          ///< commands that made it, profiles it was merged or derived from
  std::map<std::string, std::vector<Sample>> samples;  ///< by family name, sorted by dims
  std::map<std::string, Interpolation> interpolation;  ///< by family name; filled by prepare() and parse()
  std::vector<Clocks> clocks;
  std::vector<Link> links;
  std::map<std::string, Scalar> scalars;

  /// The time of a kernel: measured if the shape was, else interpolated over the family's rate in log space from the
  /// nearest shapes; outside the measured range `derived`, with the note "extrapolated ...". Never silently.
  /// nullopt: the family was not measured at all.
  std::optional<Timing> time(const Key& key) const;
  const Link* link(const std::string& link_name) const;  ///< its own, else a published one, else nullptr
  const Clocks* clocks_for(const std::string& precision, const std::string& kernels = "layer") const;
  void prepare();  ///< tests the interpolation of families where that was not done yet
};

/// Looks a profile up by name (beside the program, then in $PIPEWRIGHT_PROFILES) or as a path. Throws UsageError with
/// the known names.
Profile load(const std::string& name_or_path, const Position& where);
Profile parse(const std::string& json, const std::string& file);  ///< throws UsageError naming the field
std::string to_json(const Profile& profile);                      ///< same profile, same bytes
std::vector<std::string> known_profiles();

/// Several profiles in order of preference (`--profile A --profile B`).
class Profiles {
 public:
  explicit Profiles(std::vector<Profile> in_order);  ///< refuse_other_gpus()
  /// First profile that measured the shape; else the first that can interpolate; else derived. Throws UsageError naming
  /// the key if none knows the family.
  Timing time(const Key& key) const;
  Scalar scalar(const std::string& scalar_name) const;  ///< first that has it; throws UsageError if none
  /// Of the first profile that knows it.
  std::optional<double> find_scalar(const std::string& name) const;
  const Link& link(const std::string& link_name) const;
  const Clocks* clocks_for(const std::string& precision, const std::string& kernels = "layer") const;
  /// nullopt without clocks; kinds that were not measured alone weigh as the layer does.
  std::optional<ClockLaw> clock_law(const std::string& precision) const;
  /// Of the first profile that says what its GPU is; where none does, assumed_device().
  const Device& device() const;
  bool knows_device() const;
  const Profile& first() const { return profiles_.front(); }
  const std::vector<Profile>& all() const { return profiles_; }

 private:
  struct Memo;  // of time(): a search asks for the same few thousand shapes again and again
  Timing look_up(const Key& key) const;

  std::vector<Profile> profiles_;
  std::shared_ptr<Memo> memo_;
};

/// What the reference host spends before an operation's launch, us: once, and for each kernel that it stands for.
struct HostCost {
  double once = 0, each = 0;
};
/// `direction`: "forward", "backward", "finalize" or "optimizer". The profile's "host.<direction>.<family>_us" (the
/// longest dotted prefix of the family that it knows; with `fp8` first "host.<direction>.fp8.<family>_us"), else that
/// of an operation whose host code is of the same kind (host_cost.cpp). nullopt: neither is known.
std::optional<HostCost> host_cost(const Profiles& profiles, const std::string& direction, const std::string& family,
                                  bool fp8);

/// Times of one GPU say nothing of another's. Throws UsageError naming two profiles of different ones.
void refuse_other_gpus(const std::vector<Profile>& profiles);

/// All entries of several profiles of one GPU; where two have the same one, the first profile wins. Name: the first's.
Profile merge(const std::vector<Profile>& in_order);

/// One entry that differs between two profiles: time (us), link, scalar ... by a name that a person can read.
struct Difference {
  std::string what;  ///< "gemm.bf16.tn m=4096 n=4096 k=4096", "scalar host.cuda_launch_us", "link nvlink gbytes_per_s"
  double a = 0, b = 0;
  bool only_in_a = false, only_in_b = false;
};
std::vector<Difference> diff(const Profile& a, const Profile& b);

/// Links that are known from publications (sources in them), for profiles that have none of that name: "infiniband".
const std::vector<Link>& published_links();

// ---- Data sheets: what is published of a GPU, by which one that was not measured is derived from one that was

/// A published number; 0: the GPU has none of it.
struct Figure {
  double value = 0;
  std::string_view source;
};

/// One row a GPU (data_sheets.cpp).
struct DataSheet {
  std::string profile;  ///< name of its profile: "h100-sxm"
  Device device;
  Figure memory_bytes;             ///< what cudaMemGetInfo calls the total
  Figure memory_gbytes_per_s;      ///< device memory
  Figure bf16_tflops, fp8_tflops;  ///< tensor cores, dense
  Figure nvlink_gbytes_per_s;      ///< one direction, one GPU
  Figure host_gbytes_per_s;        ///< one direction, to the host: PCIe or NVLink-C2C
  Figure power_watts;              ///< limit of the board
  Figure host_time_factor;         ///< of the hosts it stands in; 0: nobody told, one as others
  Figure network_gbits;            ///< line of the network card of one GPU in the vendor's own systems

  /// How this part fares under full load beside another of the same generation: products that meet the power limit take
  /// so much of that part's time, over what products take of it that are over before the limit acts.
  struct UnderLoad {
    std::string than;
    double bf16 = 1, fp8 = 1;
    double spread = 0;  ///< relative standard deviation of either, from one collection to the next: parts, days
    std::string source;
    /// How much of what load adds to a product's time there it adds here; `full`: what full load makes of it there.
    double share(const std::string& precision, double full) const;
  };
  std::optional<UnderLoad> under_load;
};
const std::vector<DataSheet>& data_sheets();
/// By the profile's name. Throws UsageError at `where` with the known ones.
const DataSheet& data_sheet(const std::string& profile_name, const Position& where = {});
/// By the device's name as CUDA gives it; nullptr: none is known.
const DataSheet* find_data_sheet(const std::string& device_name);

/// A profile of a GPU that was not measured: every sample of `source` scaled by what bounds it (derive.cpp), all of it
/// marked derived. `from`: the data sheet of the source's GPU; by default found by its device's name, else a
/// UsageError.
Profile derive(const Profile& source, const DataSheet& to);
Profile derive(const Profile& source, const DataSheet& from, const DataSheet& to);
/// The same with what was measured on that GPU itself in its place: the measured entries of these, the first first.
Profile with_measured(const Profile& derived, const std::vector<Profile>& measured);

}  // namespace pipewright::profile
