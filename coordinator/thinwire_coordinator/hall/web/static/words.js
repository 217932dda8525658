// Formats numbers for the page.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (number) => (number == null ? "–" : whole.format(number));

/** Numbers below 10,000 in full, larger ones shortened, as in 12.3 k. */
export function amount(number, written = digits) {
  if (number == null) return "–";
  if (Math.abs(number) < 9999.5) return whole.format(number);
  return scaled(number, ["", "k", "M", "G", "T"], written);
}

export const bytes = (number, written = digits) =>
  number == null ? "–" : scaled(number, ["B", "kB", "MB", "GB", "TB", "PB"], written);

/** The same for axis ticks, without trailing zeros. */
export const brief = (number) => String(Number(number.toPrecision(6)));
export const briefAmount = (number) => amount(number, brief);
export const briefBytes = (number) => bytes(number, brief);

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 2 * 86400) return `${digits(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const loss = (number) => (number == null ? "–" : number.toFixed(3));

/** e to the power of a loss in nats. */
export const perplexity = (loss) => (loss < 20 ? digits(Math.exp(loss)) : Math.exp(loss).toExponential(1));

export const seconds = (number) => (number == null ? "–" : `${number.toFixed(Math.abs(number) < 10 ? 1 : 0)} s`);

export const percent = (share) => (share == null ? "–" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`);

function scaled(number, units, written) {
  let unit = 0;
  while (Math.abs(number) >= 999.5 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit ? written(number) : whole.format(number)} ${units[unit]}`.trim();
}

function digits(number) {
  return number.toFixed(number < 10 ? 2 : number < 100 ? 1 : 0);
}
