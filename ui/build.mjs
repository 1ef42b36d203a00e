// Build the page: one script, one style sheet, index.html, and the licences of what is bundled.
//
//   node build.mjs [FOLDER]    FOLDER is ../src/contrail/console/static unless given
//
// Names carry a hash of their content, so that browsers may keep them; equal sources make equal bytes.
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, '..', 'src', 'contrail', 'console', 'static');
const MODULES = 'node_modules/';

const { outputFiles, metafile } = await build({
  absWorkingDir: here,
  entryPoints: { app: 'src/main.tsx', style: 'src/style.css' },
  bundle: true,
  minify: true,
  metafile: true,
  write: false,
  outdir: 'out',
  format: 'esm',
  target: ['es2022'],
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none',
  charset: 'utf8',
  define: { 'process.env.NODE_ENV': '"production"' },
});

rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });
const names = {};
for (const { path, contents } of outputFiles) {
  const kind = path.endsWith('.css') ? 'css' : 'js';
  if (kind === 'css' && !path.endsWith('style.css')) continue;
  const hash = createHash('sha256').update(contents).digest('hex').slice(0, 16);
  names[kind] = `app-${hash}.${kind}`;
  writeFileSync(join(target, names[kind]), contents);
}
writeFileSync(join(target, 'icon.svg'), readFileSync(join(here, 'src', 'icon.svg')));
writeFileSync(
  join(target, 'index.html'),
  readFileSync(join(here, 'src', 'index.html'), 'utf8')
    .replace('{{script}}', names.js)
    .replace('{{style}}', names.css),
);
writeFileSync(join(target, 'licences.txt'), licences());

// The licence text of every package of which a file is in the bundle.
function licences() {
  const packages = new Set();
  for (const input of Object.keys(metafile.inputs)) {
    const at = input.lastIndexOf(MODULES);
    if (at < 0) continue;
    const parts = input.slice(at + MODULES.length).split('/');
    packages.add(parts[0].startsWith('@') ? `${parts[0]}/${parts[1]}` : parts[0]);
  }
  return [...packages].sort().map(licenceOf).join('\n');
}

function licenceOf(name) {
  const folder = join(here, 'node_modules', name);
  const { version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
  const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  if (file === undefined) throw new Error(`${name} has no licence file`);
  const text = readFileSync(join(folder, file), 'utf8').trim();
  return `${name} ${version} (${license})\n${'='.repeat(40)}\n${text}\n`;
}
