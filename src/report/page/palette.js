// ---- Colours. Kinds of work began as Paul Tol's schemes for colour-blind readers and were moved apart until every two of
// them differ for readers without red, green or blue cones, too (tests/report/page/palette_test.py). Waits are pale versions
// of what is waited for.

/// In the order of page_timeline.cpp's Category.
const categories = [
  { id: "forward", name: "forward", light: "#4477aa", dark: "#7596e4" },
  { id: "backward", name: "backward", light: "#41b5a5", dark: "#43baa2" },
  { id: "weight_gradient", name: "weight gradient", light: "#085938", dark: "#44715e" },
  { id: "recompute", name: "recompute", light: "#b30084", dark: "#e528bd" },
  { id: "finalisation", name: "gradient finalisation", light: "#8ec88c", dark: "#badca4" },
  { id: "optimizer", name: "optimizer", light: "#e5ca70", dark: "#f5e06e" },
  { id: "tp", name: "tensor-parallel collective", light: "#ee7733", dark: "#f08a4f" },
  { id: "cp", name: "context-parallel exchange", light: "#de266d", dark: "#c38868" },
  { id: "ep", name: "expert-parallel all-to-all", light: "#ac5f32", dark: "#d53907" },
  { id: "dp", name: "data-parallel collective", light: "#740100", dark: "#745b31" },
  { id: "offload", name: "offload copy", light: "#c5b8f0", dark: "#acecea" },
  { id: "transfer", name: "pipeline transfer", light: "#62184f", dark: "#984181" },
  { id: "host", name: "host issues", light: "#80868f", dark: "#8a9099" },
  { id: "synchronisation", name: "host waits for the GPU", light: "#c3c8cf", dark: "#4b5159" },
];

/// In the order of timeline::Cause.
const causes = [
  { id: "bubble", name: "bubble: the peer is not ready", light: "#dfe2e6", dark: "#343a41" },
  { id: "idle", name: "idle: this rank is done", light: "#eff1f3", dark: "#262a2f" },
  { id: "host", name: "waits for its host", light: "#ffe08a", dark: "#6b5a1e" },
  { id: "p2p", name: "waits for a pipeline transfer", light: "#d5b9cd", dark: "#4f2a45" },
  { id: "tp", name: "waits for a tensor-parallel collective", light: "#f9cdb0", dark: "#6f4426" },
  { id: "cp", name: "waits for a context-parallel exchange", light: "#f3bfd2", dark: "#5e4335" },
  { id: "ep", name: "waits for an expert-parallel all-to-all", light: "#e2c6b4", dark: "#68270f" },
  { id: "dp", name: "waits for a data-parallel collective", light: "#cfacac", dark: "#3f3423" },
  { id: "offload", name: "waits for an offload copy", light: "#e8e2fa", dark: "#3f5857" },
  { id: "compute", name: "waits for computation on another stream", light: "#c6d5e6", dark: "#2f4359" },
];

const spinning = { id: "spin", name: "posted, waits for the other side", light: "#d9c3cf", dark: "#4d3342" };
/// The forward and backward of every other chunk.
const alternates = [
  { id: "forward2", name: "forward", light: "#7099c4", dark: "#5470ba" },
  { id: "backward2", name: "backward", light: "#83d0c4", dark: "#2f8f7c" },
  { id: "both", name: "forward and backward together, or as traced", light: "#5b6fb8", dark: "#8a97d8" },
];

/// Everything that a pixel can be, by number: categories, causes (from firstCause), the rest.
const firstCause = categories.length;
const spinKind = firstCause + causes.length;
const alternateKind = spinKind + 1;
const kinds = [...categories, ...causes, spinning, ...alternates];

const ownerColours = ["#4477aa", "#ee7733", "#44aa99", "#aa4499", "#ddcc77", "#882255", "#88ccee", "#117733", "#cc6677"];

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const colourOf = (kind) => (isDark() ? kind.dark : kind.light);

/// "#rrggbb" as a pixel of ImageData on a little-endian machine.
function pixel(hex) {
  const value = parseInt(hex.slice(1), 16);
  return (0xff000000 | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/// Dark text on light colours and the other way round.
function inkOn(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255);
  return 0.2126 * r ** 2.2 + 0.7152 * g ** 2.2 + 0.0722 * b ** 2.2 > 0.32 ? "#14171a" : "#ffffff";
}

const key = (colour, text) => h("span", { class: "key" }, h("i", { style: `background:${colour}` }), text);
