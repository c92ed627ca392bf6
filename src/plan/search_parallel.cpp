// How a model can be spread over the machine: TP x CP x PP x EP (the rest is data parallel), microbatch size,
// interleaving with its group size N, and which layers a stage holds.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/context.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "rules.hpp"
#include "search_dimensions.hpp"

namespace pipewright::plan {

namespace {

using Int = std::int64_t;

std::vector<Int> divisors(Int n, Int most) {
  std::vector<Int> all;
  for (Int d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

/// What search: lists of a size; where it lists none, what the search proposes.
std::vector<Int> sizes(const Scenario& s, const std::string& field, std::vector<Int> proposed) {
  const auto listed = s.search.values.find(field);
  if (listed == s.search.values.end()) return proposed;
  std::vector<Int> all;
  for (const auto& text : listed->second) {
    Scenario with = s;
    scenario::set(with, "settings." + field + "=" + text);
    all.push_back(std::stoll(scenario::get(with, field)));
  }
  return all;
}

void reject(const std::string& label, const Assignments& settings, const char* rule, const std::string& reason,
            LeftOut& left_out) {
  const auto same = [&](const Rejected& r) { return r.label == label; };
  if (std::ranges::none_of(left_out.rejected, same)) left_out.rejected.push_back({label, settings, {}, rule, reason});
}

/// What of the model is not modelled beside so many context-parallel ranks, however they share attention; empty: it is.
std::string missing_beside_context(const Scenario& s, Int tp, Int cp) {
  Scenario with = s;
  with.settings.tensor_model_parallel_size = tp;
  with.settings.sequence_parallel = tp > 1;
  with.settings.context_parallel_size = 1;
  const auto before = scenario::unmodelled(with);
  with.settings.context_parallel_size = cp;
  std::string missing;
  LeftOut ignored;
  for (const auto& kind : context_values(with, ignored)) {
    Scenario one = with;
    apply(kind, one);
    const auto beside = scenario::unmodelled(one);
    const auto fresh = std::ranges::find_if(beside, [&](const auto& other) {
      return std::ranges::find(before, other.name, &scenario::Unmodelled::name) == before.end() &&
             !scenario::ignores(s, other.name);
    });
    if (fresh == beside.end()) return "";
    missing = fresh->name + " is not modelled: " + fresh->missing;
  }
  return missing;
}

/// Sizes that search: lists and no way to spread the model has. Throws where none is left.
void name_what_no_spread_has(const std::vector<Value>& values, const Scenario& s, LeftOut& left_out) {
  const auto has = [&](const std::string& field, const std::string& size) {
    return std::ranges::any_of(values, [&](const Value& value) {
      const auto set = value.setting(field);
      return (set.empty() ? scenario::get(s, field) : set) == size;
    });
  };
  for (const char* field : parallel_sizes)
    for (const Int size : sizes(s, field, {})) {
      const auto label = std::string(field) + " " + std::to_string(size);
      if (has(field, std::to_string(size))) continue;
      const auto reason = "no way to spread this model and its batch over " + std::to_string(s.cluster.num_gpus) +
                          " GPUs has it beside what else is listed";
      if (values.empty())
        throw UsageError(scenario::position(s, "search." + std::string(field)), "search." + label, reason);
      reject(label, {{field, std::to_string(size)}}, "search", reason, left_out);
    }
}

std::string optional_text(const scenario::OptInt& value) { return value ? std::to_string(*value) : "none"; }

/// Assignments that a choice drags along, only where they differ from what stands.
void link(Value& value, const Scenario& s, const std::string& name, const std::string& wanted) {
  if (scenario::get(s, name) != wanted) value.settings.emplace_back(name, wanted);
}

void without_interleaving(Value& value, const Scenario& s) {
  link(value, s, "microbatch_group_size_per_vp_stage", "none");
  link(value, s, "overlap_p2p_comm", "false");
  if (s.settings.batch_p2p_comm) link(value, s, "batch_p2p_comm", "none");
  link(value, s, "overlap_p2p_comm_warmup_flush", "false");
  link(value, s, "align_param_gather", "false");
  link(value, s, "overlap_param_gather_with_optimizer_step", "false");
}

/// Multiply-adds of a token in a mixture: its experts, at their width, and shared ones; latent projections.
double mixture_work(const Scenario& s) {
  const auto& m = s.model;
  const Int h = m.hidden_size, width = scenario::moe_hidden_size(s), matrices = m.gated_linear_unit ? 3 : 2;
  const Int routed = width * scenario::moe_ffn_hidden_size(s) * m.moe_router_topk,
            shared = h * m.moe_shared_expert_intermediate_size.value_or(0);
  return static_cast<double>(matrices * (routed + shared) + (m.moe_latent_size ? 2 * h * width : 0));
}

/// Layers' worth of the output layer: its matrix product against the parameters that a token meets in a layer.
double loss_in_layers(const Scenario& s) {
  const auto& m = s.model;
  const auto h = static_cast<double>(m.hidden_size);
  const auto kv = static_cast<double>(scenario::num_query_groups(s) * scenario::kv_channels(s));
  const auto q = static_cast<double>(m.num_attention_heads * scenario::kv_channels(s));
  const double matrices = m.gated_linear_unit ? 3 : 2;
  const double mlp =
      m.num_moe_experts ? mixture_work(s) : matrices * h * static_cast<double>(scenario::ffn_hidden_size(s));
  return h * static_cast<double>(m.vocab_size) / (h * (2 * q + 2 * kv) + mlp);
}

std::string letters(char letter, Int count) {
  if (count <= 2) return std::string(static_cast<std::size_t>(count), letter);
  return std::string(1, letter) + "*" + std::to_string(count);
}

/// "Et*3|(t*4|)*6,t*2L" for the layers of every stage.
std::string layout_text(const std::vector<Int>& layers, Int mtp) {
  std::string text = "E" + letters('t', layers.front());
  for (std::size_t i = 1; i + 1 < layers.size();) {
    auto same = i;
    while (same + 1 < layers.size() && layers[same] == layers[i]) ++same;
    const auto run = same - i;
    if (text.back() != '|' && text.back() != ',') text += '|';
    text += run == 1 ? letters('t', layers[i]) : "(" + letters('t', layers[i]) + "|)*" + std::to_string(run) + ",";
    i = same;
  }
  if (text.back() != ',' && text.back() != '|') text += '|';
  return text + letters('t', layers.back()) + letters('m', mtp) + "L";
}

/// Layers for every virtual stage so that ranks take equally long: the last one also has the loss. Empty: even anyway.
std::vector<Int> balanced(const Scenario& s, Int ranks, Int chunks) {
  const Int stages = ranks * chunks, all = s.model.num_layers;
  const double loss = loss_in_layers(s) + static_cast<double>(s.model.mtp_num_layers.value_or(0));
  if (all < stages || stages < 2) return {};
  std::vector<Int> layers(static_cast<std::size_t>(stages), 0);
  std::vector<double> load(static_cast<std::size_t>(ranks), 0);
  load.back() = loss;
  // Each layer goes to the rank with least to do, there to its emptiest chunk; the last stage counts the loss.
  for (Int layer = 0; layer < all; ++layer) {
    const auto rank = static_cast<std::size_t>(std::ranges::min_element(load) - load.begin());
    double least = INFINITY;
    std::size_t to = 0;
    for (Int c = 0; c < chunks; ++c) {
      const auto stage = static_cast<std::size_t>(c * ranks) + rank;
      const double held = static_cast<double>(layers[stage]) + (stage + 1 == layers.size() ? loss : 0);
      if (held < least) least = held, to = stage;
    }
    ++layers[to];
    ++load[rank];
  }
  const auto decoder = std::span(layers).first(layers.size() - 1);  // only the last stage may be without a layer
  if (std::ranges::find(decoder, 0) != decoder.end()) return {};
  if (std::ranges::all_of(layers, [&](Int n) { return n == layers.front(); })) return {};
  return layers;
}

/// Multiply-adds a token of a hybrid's layer; of a mixer both projections and the scan, which reads and writes a state
/// of every channel.
double work_of(const Scenario& s, char letter) {
  const auto& m = s.model;
  const auto h = static_cast<double>(m.hidden_size);
  if (letter == 'M') {
    const auto heads = static_cast<double>(scenario::mamba_num_heads(s)),
               inner = heads * static_cast<double>(m.mamba_head_dim), state = static_cast<double>(m.mamba_state_dim);
    return h * (3 * inner + 2 * static_cast<double>(m.mamba_num_groups) * state + heads) + 2 * inner * state;
  }
  if (letter == '*') {
    const auto q = static_cast<double>(m.num_attention_heads * scenario::kv_channels(s)),
               kv = static_cast<double>(scenario::num_query_groups(s) * scenario::kv_channels(s));
    return h * (2 * q + 2 * kv) + q * static_cast<double>(m.seq_length);  // causal: half of both products
  }
  if (letter == 'E') return mixture_work(s);
  return (m.gated_linear_unit ? 3 : 2) * h * static_cast<double>(scenario::ffn_hidden_size(s));
}

std::string unpiped(const Scenario& s) { return scenario::hybrid_layers(s) + scenario::hybrid_mtp_part(s); }

/// A hybrid's pattern with pipes so that the stage with most to do has least, the last one also the loss and the
/// depths of multi-token prediction. Each stage
/// has a layer at least.
std::string piped(const Scenario& s, Int stages) {
  const std::string layers = scenario::hybrid_layers(s);
  const auto n = layers.size();
  std::vector<double> before(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) before[i + 1] = before[i] + work_of(s, layers[i]);
  const auto h = static_cast<double>(s.model.hidden_size);
  const double head = h * static_cast<double>(scenario::padded_vocab_size(s));
  double depth = head + 2 * h * h;  // of multi-token prediction, with its projection
  for (const char letter : scenario::hybrid_mtp_layers(s)) depth += work_of(s, letter);
  const double loss = head + static_cast<double>(s.model.mtp_num_layers.value_or(0)) * depth;
  // least[i]: of the largest of so many stages that hold the first i layers; cut[stage][i]: where the last of them
  // begins.
  std::vector<double> least(n + 1, INFINITY);
  least[0] = 0;
  std::vector<std::vector<std::size_t>> cut;
  for (Int stage = 0; stage < stages; ++stage) {
    std::vector<double> with(n + 1, INFINITY);
    auto& begins = cut.emplace_back(n + 1, 0);
    for (std::size_t end = 1; end <= n; ++end)
      for (std::size_t begin = 0; begin < end; ++begin) {
        const double most = std::max(least[begin], before[end] - before[begin] + (stage + 1 == stages ? loss : 0));
        if (most < with[end]) with[end] = most, begins[end] = begin;
      }
    least = std::move(with);
  }
  std::string text;
  for (auto end = n; !cut.empty(); cut.pop_back()) {
    const auto begin = cut.back()[end];
    text.insert(0, layers.substr(begin, end - begin) + (text.empty() ? "" : "|"));
    end = begin;
  }
  return text + scenario::hybrid_mtp_part(s);
}

/// Pipes, and how many stages they may make a rank: Bridge's provider builds no virtual stages of hybrids.
bool has_pipes(const Scenario& s) { return scenario::core_version(s.software) >= scenario::Version::v0_17; }
Int most_piped(const Scenario& s) { return !has_pipes(s) || s.software.megatron_bridge ? 1 : 4; }

}  // namespace

std::vector<Value> parallelism_values(const Scenario& partial, LeftOut& left_out) {
  const auto& m = partial.model;
  const auto& given = partial.settings;
  const Int gpus = partial.cluster.num_gpus, groups = scenario::num_query_groups(partial);
  constexpr Int fewest_tokens = 1024;  // of a context-parallel rank: shorter parts leave the tensor cores idle
  constexpr Int most_stages = 32;
  const auto [tensor, pipeline, context, expert] = parallel_sizes;
  // What is given stays as it is, in all that hangs on it, also where nothing below would propose it.
  const auto label = [&](Int tp, Int pp, Int cp, Int ep, Int dp) {
    auto text = "TP " + std::to_string(tp) + " PP " + std::to_string(pp);
    if (cp > 1) text += " CP " + std::to_string(cp);
    if (ep > 1) text += " EP " + std::to_string(ep);
    return text + " DP " + std::to_string(dp);
  };
  const Int tp_given = given.tensor_model_parallel_size, pp_given = given.pipeline_model_parallel_size,
            cp_given = given.context_parallel_size, ep_given = given.expert_model_parallel_size;
  const bool usual = given.sequence_parallel == (tp_given > 1) &&
                     (!m.num_moe_experts || scenario::expert_tensor_parallel_size(partial) == 1);
  std::vector<Value> values;
  const auto& listed = partial.search.values;
  const auto is_listed = [&](const char* field, Int size) {
    const auto all = sizes(partial, field, {size});
    return std::ranges::find(all, size) != all.end();
  };
  if (is_listed(tensor, tp_given) && is_listed(pipeline, pp_given) && is_listed(context, cp_given) &&
      is_listed(expert, ep_given)) {
    values.push_back({label(tp_given, pp_given, cp_given, ep_given, scenario::data_parallel_size(partial)), {}, {}});
    if (!usual) values.front().label += ", as given";
  }
  std::string no_context;
  for (const Int tp : sizes(partial, tensor, divisors(gpus, partial.cluster.gpus_per_node))) {
    if (gpus % tp != 0) continue;
    if (m.num_attention_heads % tp != 0 || (groups % tp != 0 && tp % groups != 0)) continue;
    for (const Int cp : sizes(partial, context, divisors(gpus / tp, 16))) {
      if ((gpus / tp) % cp != 0 || (cp > 1 && m.seq_length % (2 * cp) != 0)) continue;
      if (cp > 1 && m.seq_length / cp < fewest_tokens && !listed.contains(context)) continue;
      if (const auto missing = cp > 1 ? missing_beside_context(partial, tp, cp) : ""; !missing.empty()) {
        if (no_context.empty()) no_context = missing;
        if (!listed.contains(context)) continue;
      }
      for (const Int pp : sizes(partial, pipeline, divisors(gpus / (tp * cp), std::min(most_stages, m.num_layers)))) {
        if ((gpus / (tp * cp)) % pp != 0 || pp > m.num_layers) continue;
        const Int dp = gpus / (tp * cp * pp);
        if (given.global_batch_size % dp != 0) continue;
        for (const Int ep : sizes(partial, expert, divisors(m.num_moe_experts.value_or(1), gpus / pp))) {
          if ((gpus / pp) % ep != 0 || m.num_moe_experts.value_or(1) % ep != 0) continue;
          if (usual && tp == tp_given && pp == pp_given && cp == cp_given && ep == ep_given) continue;
          Value value;
          value.label = label(tp, pp, cp, ep, dp);
          value.settings = {{tensor, std::to_string(tp)}};
          if (!listed.contains("sequence_parallel"))
            value.settings.emplace_back("sequence_parallel", tp > 1 ? "true" : "false");
          value.settings.emplace_back(context, std::to_string(cp));
          value.settings.emplace_back(pipeline, std::to_string(pp));
          if (m.num_moe_experts) {
            value.settings.emplace_back(expert, std::to_string(ep));
            if (!listed.contains("expert_tensor_parallel_size"))
              value.settings.emplace_back("expert_tensor_parallel_size", "1");
          }
          if (pp != given.pipeline_model_parallel_size || given.pipeline_model_parallel_layout) {
            for (const char* name : {"virtual_pipeline_model_parallel_size", "num_layers_in_first_pipeline_stage",
                                     "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout"})
              link(value, partial, name, "none");
            link(value, partial, "account_for_embedding_in_pipeline_split", "false");
            link(value, partial, "account_for_loss_in_pipeline_split", "false");
            if (scenario::is_hybrid(partial)) link(value, partial, "hybrid_layer_pattern", unpiped(partial));
          }
          if (pp == 1) {
            without_interleaving(value, partial);
            link(value, partial, "defer_embedding_wgrad_compute", "false");
            link(value, partial, "wgrad_deferral_limit", "0");
          }
          if (tp == 1) link(value, partial, "tp_comm_overlap", "false");
          values.push_back(std::move(value));
        }
      }
    }
  }
  name_what_no_spread_has(values, partial, left_out);
  if (!no_context.empty()) reject("some or all context parallelism", {}, "model", no_context, left_out);
  return values;
}

std::vector<Value> context_values(const Scenario& partial, LeftOut&) {
  const auto& given = partial.settings;
  const Int cp = given.context_parallel_size, tp = given.tensor_model_parallel_size;
  const auto stated = scenario::context_sharing(partial);
  if (cp == 1) {
    if (given.hierarchical_context_parallel_sizes.empty()) return {};
    // Sizes of levels that are no more.
    return {{"", {{"cp_comm_type", "[p2p]"}, {"hierarchical_context_parallel_sizes", "[]"}}, {}}};
  }
  const Int heads = partial.model.num_attention_heads / tp,
            groups = std::max<Int>(1, scenario::num_query_groups(partial) / tp);
  const auto shared = [&](Int ranks) { return heads % ranks == 0 && groups % ranks == 0; };
  std::vector<Value> values;
  std::vector<std::size_t> lacking;  // of each value: what of the model is not modelled with it
  const auto add = [&](const std::string& kind, const scenario::Ints& sizes) {
    Scenario with = partial;
    with.settings.cp_comm_type = {kind};
    with.settings.hierarchical_context_parallel_sizes = sizes;
    std::string levels;
    for (const auto size : sizes) levels += (levels.empty() ? "" : ", ") + std::to_string(size);
    Value value{"cp_comm_type " + kind + (sizes.empty() ? "" : " [" + levels + "]"), {}, {}};
    const auto sharing = scenario::context_sharing(with);
    const bool same = stated && stated->heads == sharing->heads && stated->ring == sharing->ring &&
                      stated->gathers == sharing->gathers;
    if (!same)
      value.settings = {{"cp_comm_type", "[" + kind + "]"},
                        {"hierarchical_context_parallel_sizes", "[" + levels + "]"}};
    values.push_back(std::move(value));
    lacking.push_back(scenario::unmodelled(with).size());
  };
  add("p2p", {});
  add("all_gather", {});
  if (shared(cp)) add("a2a", {});
  const Int joined = std::min(scenario::nvlink_domain(partial), partial.cluster.num_gpus),
            domain = std::max<Int>(1, joined / tp), near = std::gcd(cp, domain);
  const auto levels = [&](Int first) {
    if (first > 1 && first < cp && shared(first)) add("a2a+p2p", {first, cp / first});
  };
  levels(near);
  if (stated && stated->heads != near) levels(stated->heads);
  const auto least = *std::ranges::min_element(lacking);
  std::vector<Value> modelled;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (lacking[i] == least) modelled.push_back(std::move(values[i]));
  return modelled;
}

std::vector<Value> microbatch_values(const Scenario& partial, LeftOut&) {
  const Int each = partial.settings.global_batch_size / std::max<Int>(1, scenario::data_parallel_size(partial));
  // Beyond these a kernel gains nothing from more tokens, and activations grow with each.
  constexpr Int largest = 16, most_tokens = 131'072;
  std::vector<Value> values;
  for (const auto size : divisors(each, std::max(largest, most_tokens / partial.model.seq_length)))
    values.push_back({"micro batch " + std::to_string(size), {{"micro_batch_size", std::to_string(size)}}, {}});
  return values;
}

std::vector<Value> pipeline_values(const Scenario& partial, LeftOut& left_out) {
  const auto& settings = partial.settings;
  const Int stages = settings.pipeline_model_parallel_size, layers = partial.model.num_layers;
  const bool free_layout = layout_is_open(partial);
  const bool even = !settings.pipeline_model_parallel_layout && !settings.num_layers_in_first_pipeline_stage &&
                    !settings.num_layers_in_last_pipeline_stage;
  const Int split = layers + (settings.account_for_embedding_in_pipeline_split ? 1 : 0) +
                    (settings.account_for_loss_in_pipeline_split ? 1 : 0);
  if (stages <= 1 || (scenario::is_hybrid(partial) && !free_layout)) return {};
  if (!free_layout && (!even || split % stages != 0)) {
    left_out.notes.emplace_back("pipeline: an uneven layer split keeps its interleaving as given");
    return {};
  }
  constexpr Int most_by_layout = 4;  // chunks a rank where only a written layout splits the layers
  const bool hybrid = scenario::is_hybrid(partial);
  const auto possible = [&](Int v) {
    if (hybrid) return v <= most_piped(partial) && layers >= stages * v;
    if (!free_layout) return split % (stages * v) == 0;
    for (const Int counted : {0, 1, 2})
      if ((layers + counted) % (stages * v) == 0) return true;
    return v <= most_by_layout && layers >= stages * v;
  };
  std::vector<Value> values;
  const bool interleaved = scenario::interleaved(partial);
  const Int microbatches = scenario::num_microbatches(partial);
  const Int most = std::max<Int>(1, (layers + 2) / stages);
  for (Int v = 1; v <= most; ++v) {
    if (!possible(v)) continue;
    if (v == 1) {
      Value plain{"no interleaving", {{"virtual_pipeline_model_parallel_size", "none"}}, {}};
      without_interleaving(plain, partial);
      if (hybrid) link(plain, partial, "hybrid_layer_pattern", unpiped(partial));
      values.push_back(std::move(plain));
      continue;
    }
    Value value{"VPP " + std::to_string(v), {{"virtual_pipeline_model_parallel_size", std::to_string(v)}}, {}};
    if (hybrid) {
      for (const char* name : {"num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"})
        link(value, partial, name, "none");
      link(value, partial, "hybrid_layer_pattern", piped(partial, stages * v));
    }
    if (!interleaved) {
      link(value, partial, "overlap_p2p_comm", "true");
      if (settings.batch_p2p_comm) link(value, partial, "batch_p2p_comm", "none");
    }
    // N: as stated, PP (the default) and twice that: fewer exposed transfers for more activations.
    std::vector<std::pair<Int, std::string>> groups = {{stages, "none"}};
    if (const auto stated = settings.microbatch_group_size_per_vp_stage; stated && *stated != stages)
      groups.insert(groups.begin(), {*stated, optional_text(stated)});
    if (2 * stages <= microbatches && groups.front().first != 2 * stages)
      groups.emplace_back(2 * stages, std::to_string(2 * stages));
    for (const auto& [n, text] : groups) {
      // Megatron refuses the others: they are not listed one by one.
      if (n > microbatches || (microbatches % n != 0 && microbatches % n < stages)) continue;
      Value one = value;
      if (n != stages) one.label += ", N " + text;
      link(one, partial, "microbatch_group_size_per_vp_stage", text);
      values.push_back(std::move(one));
    }
  }
  return values;
}

bool layout_is_open(const Scenario& s) { return s.search.layout == "auto" || s.search.parallelism == "auto"; }

std::vector<Value> layout_values(const Scenario& partial, LeftOut&) {
  const Int ranks = partial.settings.pipeline_model_parallel_size, chunks = scenario::num_chunks(partial);
  const Int layers = partial.model.num_layers, stages = ranks * chunks;
  if (ranks == 1) return {};
  std::vector<Value> values;
  const auto add = [&](const std::string& label, bool embedding, bool loss, const std::string& layout) {
    Value value{label, {}, {}};
    link(value, partial, "num_layers_in_first_pipeline_stage", "none");
    link(value, partial, "num_layers_in_last_pipeline_stage", "none");
    link(value, partial, "account_for_embedding_in_pipeline_split", embedding ? "true" : "false");
    link(value, partial, "account_for_loss_in_pipeline_split", loss ? "true" : "false");
    link(value, partial, "pipeline_model_parallel_layout", layout);
    values.push_back(std::move(value));
  };
  const bool mtp = partial.model.mtp_num_layers.value_or(0) > 0;
  if (scenario::is_hybrid(partial)) {
    const auto add_pattern = [&](const std::string& label, const std::string& pattern) {
      add(label, false, false, "none");
      link(values.back(), partial, "hybrid_layer_pattern", pattern);
    };
    if (chunks == 1 && layers % stages == 0) add_pattern("even layers", unpiped(partial));
    if (has_pipes(partial) && layers >= stages) {
      const auto pattern = piped(partial, stages);
      add_pattern("layout " + pattern, pattern);
    }
    return values;
  }
  if (layers % stages == 0) add("even layers", false, false, "none");
  if ((layers + 2) % stages == 0) add("embedding and loss count as layers", true, true, "none");
  if ((layers + 1) % stages == 0) add("loss counts as a layer", false, true, "none");
  if (const auto split = balanced(partial, ranks, chunks); !split.empty()) {
    const auto text = layout_text(split, mtp ? *partial.model.mtp_num_layers : 0);
    add("layout " + text, false, false, text);
  }
  return values;
}

}  // namespace pipewright::plan
