// Answers with everything on the page that a reader would trip over, as {check: [what was found]}.
(() => {
  const shown = (element) => {
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    return box.width > 0 && box.height > 0 && style.visibility !== "hidden" && style.display !== "none";
  };
  const name = (element) => `${element.tagName.toLowerCase()}.${element.className.baseVal ?? element.className}: ` +
    (element.textContent || "").trim().slice(0, 40);
  const channels = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const over = (top, bottom) => {  // a colour with alpha on an opaque one
    const alpha = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map((at) => alpha * top[at] + (1 - alpha) * bottom[at]);
  };
  const background = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor));
    const canvas = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
    return layers.reverse().reduce((below, layer) => over(layer, below), canvas);
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, two) => {
    const [light, dark] = [luminance(one), luminance(two)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const leaves = [...document.querySelectorAll("body *")].filter((element) => !element.closest("svg") && shown(element) &&
    [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  const width = document.documentElement.clientWidth;
  const scrolls = (element) => {  // inside a box of its own that can be moved sideways
    for (let at = element; at && at !== document.body; at = at.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(at).overflowX)) return true;
    return false;
  };
  const overlaps = [];
  for (const row of document.querySelectorAll("tr, .facts, .settings div, .statement > div")) {
    const cells = [...row.children].filter(shown).map((cell) => cell.getBoundingClientRect());
    cells.forEach((one, at) => cells.slice(at + 1).forEach((two) => {
      if (one.left < two.right - 1 && two.left < one.right - 1 && one.top < two.bottom - 1 && two.top < one.bottom - 1)
        overlaps.push(name(row));
    }));
  }
  const unlabelled = [...document.querySelectorAll("svg")].filter((svg) => {
    const box = svg.getBoundingClientRect();
    return shown(svg) && svg.closest(".plot") && (box.width < 240 || box.right > width + 1);
  });
  const cut = [...document.querySelectorAll("svg text")].filter((text) => {
    const inner = text.getBoundingClientRect(), outer = text.closest("svg").getBoundingClientRect();
    return shown(text) && (inner.left < outer.left - 0.5 || inner.right > outer.right + 0.5);
  });
  return {
    wider_than_the_window: document.documentElement.scrollWidth > width ? [document.documentElement.scrollWidth] : [],
    beyond_the_edge: leaves.filter((element) => element.getBoundingClientRect().right > width + 1 && !scrolls(element)).map(name),
    images_not_loaded: [...document.images].filter((image) => !image.complete || !image.naturalWidth).map((image) => image.src),
    figures_too_small: unlabelled.map(name),
    text_too_small: leaves.filter((element) => parseFloat(getComputedStyle(element).fontSize) < 11).map(name),
    contrast_too_low: leaves.filter((element) =>
      contrast(over(channels(getComputedStyle(element).color), background(element)), background(element)) < 4.5).map(name),
    cells_overlap: overlaps,
    labels_cut: cut.map(name),
    empty: document.body.innerText.trim().length < 200 ? ["the page"] : [],
  };
})()
