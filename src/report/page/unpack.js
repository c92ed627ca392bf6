// ---- What pack.cpp packed: deflated base64 of a JSON and columns of variable-length integers.

async function unpack(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const all = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(all.buffer).getUint32(0, true);
  const json = JSON.parse(new TextDecoder().decode(all.subarray(4, 4 + length)));
  const base = 4 + length;
  return { json, numbers: (name) => numbers(all, base, json.columns[name]), has: (name) => name in json.columns };
}

function numbers(all, base, [offset, , count]) {
  const out = new Float64Array(count);
  let at = base + offset;
  for (let i = 0; i < count; i++) {
    let byte = all[at++];
    let value = byte & 127;
    // Beyond 31 bits shifts would wrap: multiply.
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = all[at++];
      value += (byte & 127) * scale;
    }
    out[i] = value;
  }
  return out;
}

/// Signed numbers in place.
function signed(values) {
  for (let i = 0; i < values.length; i++) {
    const v = values[i];
    values[i] = v % 2 === 0 ? v / 2 : -(v + 1) / 2;
  }
  return values;
}

/// Differences to the number before, in place.
function summed(values) {
  signed(values);
  for (let i = 1; i < values.length; i++) values[i] += values[i - 1];
  return values;
}
