// Decoded pictures, and variants of them: faded for dropped cells, grey under colours.

import { siblings } from "./journey.js";

const loaded = new Map(); // the latest few, as a live page loads ever more
const MOST_LOADED = 24;
const SMALL = 160; // pixels; smaller pictures are enlarged without smoothing

// A picture as a canvas; a blank one of the given proportions if there is none.
export function loadPicture(url, proportions = 1) {
  const key = url ?? `blank ${proportions}`;
  const picture = loaded.get(key) ?? decode(url).catch(() => blank(proportions));
  loaded.delete(key);
  loaded.set(key, picture);
  if (loaded.size > MOST_LOADED) loaded.delete(loaded.keys().next().value);
  return picture;
}

async function decode(url) {
  if (!url) throw new Error("no picture");
  const image = new Image();
  image.src = url;
  await image.decode();
  return makePicture(image, image.naturalWidth, image.naturalHeight);
}

function blank(proportions) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [320, Math.max(1, Math.round(320 / proportions))];
  const context = canvas.getContext("2d");
  context.fillStyle = "#8b90a5";
  context.fillRect(0, 0, canvas.width, canvas.height);
  return makePicture(canvas, canvas.width, canvas.height);
}

function makePicture(source, width, height) {
  const plain = document.createElement("canvas");
  [plain.width, plain.height] = [width, height];
  plain.getContext("2d", { willReadFrequently: true }).drawImage(source, 0, 0);
  const shades = new Map();
  const shade = (name, weight, offset, colour = 0) => {
    if (!shades.has(name)) shades.set(name, greyed(plain, weight, offset, colour));
    return shades.get(name);
  };
  return {
    plain,
    width,
    height,
    isSmall: Math.max(width, height) <= SMALL,
    faded: (dark) => (dark ? shade("dark", 0.2, 26) : shade("light", 0.26, 182)),
    folded: (dark) => (dark ? shade("half dark", 0.16, 22, 0.22) : shade("half", 0.3, 138, 0.2)),
    grey: () => shade("grey", 0.62, 6),
  };
}

// grey * weight + offset, with some of the colour left.
function greyed(source, weight, offset, colour) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [source.width, source.height];
  const pixels = source.getContext("2d").getImageData(0, 0, source.width, source.height);
  const data = pixels.data;
  for (let at = 0; at < data.length; at += 4) {
    const grey = (weight * (data[at] + data[at + 1] + data[at + 2])) / 3 + offset;
    for (let part = at; part < at + 3; part++) data[part] = grey + colour * data[part];
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

// Names of the pictures of the same shape, this one first; without those of items, other tiles or
// frames, and those with a legend, whose colours could not be read under a map.
export async function alike(record, name) {
  const taken = ofItems(record);
  for (const stage of record.stages) {
    if (stage.grid?.picture === name) for (const other of siblings(record, stage)) taken.add(other);
  }
  const names = Object.keys(record.pictures).filter(
    (other) => other !== name && !taken.has(other) && !record.legends[other],
  );
  const [own, ...others] = await Promise.all(
    [name, ...names].map((one) => loadPicture(record.pictures[one])),
  );
  const ratio = own.width / own.height;
  return [
    name,
    ...names.filter((_, at) => Math.abs(others[at].width / others[at].height / ratio - 1) < 0.01),
  ];
}

export function ofItems(record) {
  return new Set(
    record.stages.flatMap((stage) => (stage.items ?? []).map((item) => item.picture)),
  );
}
