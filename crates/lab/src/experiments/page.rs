//! `page`: how soon the catalogue of a node with many images is painted, and how large the page is, in Debian's Chromium
//! over loopback, each time with an empty browser cache. Compared with a plain text file of the same node.
use anyhow::{Context as _, ensure};
use floe_api::paths::Home;
use floe_front::page::thumbnail::{THUMB_REGION, of_screen};
use floe_image::{ImageName, MachineConfig};
use floe_node::{NodeOptions, WebOptions};
use floe_store::{Ingest, IngestOptions, Repository};
use floe_testbed::harness::{Context, Report, Samples};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::path::Path;
use std::process::{Command, Stdio};

/// Number of images in the catalogue.
const IMAGES: usize = 200;
/// Size of the drawn screens, in pixels.
const SCREEN: (u32, u32) = (1024, 640);
/// Size of a character cell on such a screen, in pixels.
const CELL: (u32, u32) = (8, 16);
/// Seed for the content of the screens.
const SEED: u64 = 7;

/// The output of `web/tests/paint.mjs`.
#[derive(serde::Deserialize)]
struct Painted {
    painted_ms: Vec<f64>,
    first_ms: Vec<f64>,
    plain_ms: Vec<f64>,
    page_bytes: u64,
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("page", context.quick);
    let home = Home::at(context.scratch.join("home"));
    std::fs::create_dir_all(home.root())?;
    let repository = Repository::create(&home.repo())?;
    let mut random = StdRng::seed_from_u64(SEED);
    let mut thumb_bytes = 0;
    for number in 0..IMAGES {
        thumb_bytes += publish(&repository, number, &mut random)?;
    }
    let mut options = NodeOptions::new(home)?;
    options.socket = context.scratch.join("node.sock");
    options.web = Some(WebOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        any_port: false,
        token: None,
    });
    let node = floe_node::serve(options)?;
    let login = node.node().page()?.login_url;
    let painted = paint(&login, context.pick(9, 3));
    node.shutdown(true);
    let painted = painted?;

    let samples = |values: &[f64]| values.iter().copied().collect::<Samples>();
    let plain = samples(&painted.plain_ms).median();
    report
        .add("first_paint_ms", "ms", &samples(&painted.painted_ms))
        .against(
            "first paint of a plain text file of the same node",
            "ms",
            plain,
        );
    report
        .add("anything_ms", "ms", &samples(&painted.first_ms))
        .against(
            "first paint of a plain text file of the same node",
            "ms",
            plain,
        );
    let all = folder_bytes(&web().join("dist/assets"))?;
    report
        .add_value("page_kb", "kB", painted.page_bytes as f64 / 1e3)
        .against("with noVNC, which a screen loads", "kB", all as f64 / 1e3);
    report.note(format!(
        "{IMAGES} images, each with a thumbnail of {} kB on average; until all cards stand and a frame with them is drawn",
        thumb_bytes / IMAGES / 1000
    ));
    Ok(report)
}

fn web() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web")
}

fn paint(login: &str, runs: usize) -> anyhow::Result<Painted> {
    let output = Command::new("node")
        .args([
            "tests/paint.mjs",
            login,
            &IMAGES.to_string(),
            &runs.to_string(),
        ])
        .current_dir(web())
        .stderr(Stdio::inherit())
        .output()
        .context("node does not start (scripts/deps installs it, `make web` its packages)")?;
    ensure!(output.status.success(), "the browser did not show the page");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the bytes of the compressed files.
fn folder_bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        if file.path().extension().is_some_and(|end| end == "gz") {
            bytes += file.metadata()?.len();
        }
    }
    Ok(bytes)
}

/// Makes an image with a screen. Returns the bytes of its thumbnail.
fn publish(repository: &Repository, number: usize, random: &mut StdRng) -> anyhow::Result<usize> {
    let thumb = of_screen(&screen(random)?).context("the drawn screen is no picture")?;
    let mut ingest = Ingest::new(repository, IngestOptions::default())?;
    let state: Vec<u8> = (0..64 << 10).map(|_| random.random()).collect();
    ingest.region_bytes("ram", &state)?;
    ingest.region_bytes("device", &state[..4096])?;
    ingest.region_bytes(THUMB_REGION, &thumb)?;
    let id = ingest.finish(MachineConfig::default())?;
    let tag = ["latest", "stable", "testing"][number % 3];
    let name = ImageName::parse(&format!("machine-{number}:{tag}"))?;
    repository.tag(&name, &id)?;
    Ok(thumb.len())
}

/// Draws a terminal full of words in one of several colours, as PNG.
fn screen(random: &mut StdRng) -> anyhow::Result<Vec<u8>> {
    let (width, height) = SCREEN;
    let ground: [u8; 3] = [
        random.random_range(0..40),
        random.random_range(0..40),
        random.random_range(0..60),
    ];
    let mut pixels: Vec<u8> = ground.repeat((width * height) as usize);
    for row in 0..height / CELL.1 {
        let length = random.random_range(0..width / CELL.0);
        for column in 0..length {
            if random.random_ratio(1, 6) {
                continue; // a gap between two words
            }
            let glyph: u64 = random.random();
            for bit in 0..64 {
                if glyph >> bit & 1 == 0 {
                    continue;
                }
                let (x, y) = (column * CELL.0 + bit % 8, row * CELL.1 + 4 + bit / 8);
                let at = ((y * width + x) * 3) as usize;
                pixels[at..at + 3].copy_from_slice(&[200, 210, 205]);
            }
        }
    }
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(out)
}
