// Colours of scores and of groups.

// From low to high: anchors of matplotlib's magma, without its black end.
const HEAT = [
  [40, 17, 89],
  [81, 18, 124],
  [130, 37, 129],
  [182, 54, 121],
  [230, 81, 100],
  [251, 136, 97],
  [254, 196, 136],
  [252, 253, 191],
];
const GOLDEN_ANGLE = 137.508;

export function heat(share) {
  const place = share * (HEAT.length - 1);
  const low = Math.min(HEAT.length - 2, Math.floor(place));
  return HEAT[low].map((from, at) => Math.round(from + (HEAT[low + 1][at] - from) * (place - low)));
}

export function heatGradient() {
  return `linear-gradient(90deg, ${HEAT.map((colour) => `rgb(${colour})`).join(", ")})`;
}

// Consecutive numbers get clearly different colours.
export function groupColour(at) {
  const lightness = [0.72, 0.82, 0.64, 0.77, 0.68][at % 5];
  return `oklch(${lightness} 0.15 ${(30 + GOLDEN_ANGLE * at) % 360})`;
}
