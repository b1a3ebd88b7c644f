// What a reader of the page would complain about; each function gives a list, which is to be empty.

function texts() {
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode())
    if (walk.currentNode.data.trim() && walk.currentNode.parentElement.checkVisibility()) found.push(walk.currentNode);
  return found;
}

// Words on more than one line. A longer one than these 24 letters may have to be.
function torn() {
  return texts().flatMap(text => [...text.data.matchAll(/[A-Za-z0-9]+/g)].filter(word => {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    return word[0].length <= 24 && new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1;
  }).map(word => `${word[0]} of ${text.data.trim()}`));
}

// What is wider than the window, which then scrolls sideways.
function wide() {
  const { scrollWidth, clientWidth } = document.documentElement;
  const beyond = [...document.body.querySelectorAll("*")].filter(one => one.getBoundingClientRect().right > clientWidth);
  return scrollWidth <= clientWidth ? [] : beyond.map(one => `${one.tagName}.${one.className}`);
}

// Texts of too little contrast with what is behind them: WCAG 2.2, 1.4.3, "Contrast (Minimum)".
function faint() {
  const parts = colour => colour.match(/[\d.]+/g).map(Number);
  const linear = share => share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = one => {
    const [r, g, b, opacity = 1] = parts(getComputedStyle(one).backgroundColor);
    return opacity ? [r, g, b] : one.parentElement ? ground(one.parentElement) : [255, 255, 255];
  };
  const contrast = one => {
    const both = [parts(getComputedStyle(one).color), ground(one)].map(luminance);
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  };
  return texts().map(text => [contrast(text.parentElement), text]).filter(([ratio]) => ratio < 4.5)
    .map(([ratio, text]) => `${ratio.toFixed(2)} ${text.parentElement.className}: ${text.data.trim()}`);
}

// Pictures and style sheets that are not in effect.
function unloaded() {
  const blank = [...document.images].filter(one => !one.complete || !one.naturalWidth);
  const bare = [...document.querySelectorAll("link")].filter(one => !one.sheet || !one.sheet.cssRules.length);
  return [...blank.map(one => one.src), ...bare.map(one => one.href)];
}

// What a reader of paper cannot unfold.
function folded() {
  return [...document.querySelectorAll("details > :not(summary)")].filter(one => !one.checkVisibility())
    .map(one => one.innerText);
}
