// Videos of episodes, and the result of the newest evaluation.

import { details } from "./details.js";
import { card, command, h } from "./dom.js";
import { ago, bytes, measured, whole } from "./format.js";
import { ofRun } from "./store.js";

export function episodesTab(store, name) {
  const element = h("div", { class: "panel" });
  const ask = details(name, "api/details", (found) => {
    element.replaceChildren(
      ...(found.error ? [h("p", { class: "empty", text: found.error })] : [evaluation(found), videos(name, found)]),
    );
  });
  return {
    element,
    update: () => {
      ask(store.run(name));
    },
  };
}

function evaluation({ evaluation: result, path }) {
  if (result.mean_return === undefined) {
    return card(
      "Evaluation",
      h("p", { class: "hint", text: "No evaluation yet. This plays whole episodes with the newest good checkpoint:" }),
      command(`jaxsrl evaluate ${quoted(path)}`),
    );
  }
  const facts = [
    ["Evaluation return", measured(result.mean_return)],
    ["Standard deviation", measured(result.std_return)],
    ["Lowest and highest", `${measured(result.min_return)} to ${measured(result.max_return)}`],
    ["Update", whole(result.update)],
    ["Episodes", whole(result.episodes)],
    ["Mean length", `${measured(result.mean_length)} env steps`],
    ["Actions", result.greedy ? "the most likely ones" : "sampled"],
  ];
  return card(
    "Evaluation",
    h(
      "div",
      { class: "pairs" },
      ...[facts.slice(0, 3), facts.slice(3)].map((some) =>
        h(
          "table",
          { class: "facts" },
          h(
            "tbody",
            {},
            ...some.map(([title, text]) => h("tr", {}, h("th", { scope: "row", text: title }), h("td", { text }))),
          ),
        ),
      ),
    ),
  );
}

function videos(name, { videos: found, path }) {
  if (!found.length) {
    return card(
      "Episodes",
      h("p", { class: "hint", text: "No video yet. This records the newest good checkpoint, and the page shows it:" }),
      command(`jaxsrl evaluate ${quoted(path)} --video ${quoted(`${path}/episode.mp4`)}`),
    );
  }
  return card(
    "Episodes",
    h(
      "div",
      { class: "videos" },
      ...found.map((video) =>
        h(
          "figure",
          {},
          h("video", {
            controls: true,
            preload: "metadata",
            playsinline: true,
            src: `${ofRun("video", name)}&name=${encodeURIComponent(video.name)}#t=0.01`,
            "aria-label": video.name,
          }),
          h("figcaption", {}, video.name, h("span", { text: `${bytes(video.bytes)}, ${ago(video.changed)}` })),
        ),
      ),
    ),
  );
}

export function quoted(path) {
  return /^[\w./@+=-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
}
