//! The paper's policies and ours, as settings of one machine.

/// The settings of a policy. The reason for each of ours stands at its field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Whether peers are asked and served; otherwise everything comes from the seed.
    pub peers: bool,
    /// Whether the prediction is fetched ahead.
    pub prefetch: bool,
    /// Whether pieces have wardens.
    pub wardens: bool,
    /// Whether a host that is asked, the seed too, serves demands before prefetch. The paper's hosts put their own demands first, but
    /// BitTorrent does not tell the one who is asked.
    pub demand_first: bool,
    /// Pieces of the window for each host of the swarm; 0 if the window is [`Config::window_max`], however many there are.
    pub window_per_peer: f64,
    /// The smallest window: some pieces ahead must be under way, or each is waited for.
    pub window_min: usize,
    /// The largest window, in pieces: beyond it comes what is needed too late to be worth its place on the link now.
    pub window_max: usize,
    /// Most prefetches under way. 16 of 64 KiB are 84 ms of a downlink of 100 Mbit/s: enough to keep it busy while peers queue, little
    /// enough that a demand that arrives behind them is not late. The swarms of a host that fetch ahead share them.
    pub prefetch_max: usize,
    /// What is under way ahead of need, in time of the link, in microseconds: a demand comes after it. 0 if only the numbers here bound it.
    /// On 20 Mbit/s, 16 pieces are 420 ms.
    pub queue_us: u64,
    /// Whether nothing is asked for ahead of need while a machine waits, and afterwards until it has run for as long as it waited. A
    /// machine that waits most of the time is catching up.
    pub quiet: bool,
    /// Most prefetches under way at one host.
    pub prefetch_per_peer_max: usize,
    /// Most duties under way at the seed.
    pub duties_max: usize,
    /// Most pieces that are being sent at a time, and one more if it is a demand. Few, so that each ends soon and can be passed on.
    pub uploads_max: usize,
    /// Most questions of one host that wait here; more are refused, and a host that goes on at four times as many is dropped.
    pub waiting_per_peer_max: usize,
    /// Most questions that wait here for pieces that are on their way, for each piece.
    pub held_per_piece_max: usize,
    /// Bytes of a piece: the numbers of pieces here are for this size ([`Config::of_pieces`]).
    pub piece_bytes: u64,
    /// A demand that has waited this long at one host is moved to another that has the piece, in microseconds.
    pub demand_patience_us: u64,
    /// A demand that has waited this long goes to the seed, in microseconds.
    pub seed_patience_us: u64,
    /// A host that refused a piece is not asked for another one for so long, in microseconds.
    pub refused_us: u64,
    /// A host that was asked and sent nothing for so long is dropped, in microseconds.
    pub stall_us: u64,
    /// The end game: this many pieces are left, all of them on their way.
    pub end_game_pieces: usize,
    /// At the end game a piece that has been on its way for so long is asked of a second host, in microseconds.
    pub end_game_us: u64,
}

impl Config {
    /// Client and server, demand only: what a network file system does.
    pub fn cs_d() -> Config {
        Config {
            peers: false,
            prefetch: false,
            wardens: false,
            demand_first: false,
            window_per_peer: 0.0,
            queue_us: 0,
            ..Config::ours()
        }
    }

    /// Client and server, with a profile. Nothing of the profile is asked for while the machine catches up (section 4.4.1), and never more
    /// than arrives in a moment, because the server's link is everybody's. The window is the paper's, 300 pieces of 16 KiB (section 2.2.4).
    pub fn cs_p() -> Config {
        Config {
            prefetch: true,
            window_max: 75,
            quiet: true,
            queue_us: 100_000,
            ..Config::cs_d()
        }
    }

    /// Peers, demand only.
    pub fn p2p_d() -> Config {
        Config {
            peers: true,
            ..Config::cs_d()
        }
    }

    /// VMTorrent: peers and a window of 4.9 MB in which the next piece is chosen at random; while the machine catches up only demands
    /// are asked (section 4.4.1).
    pub fn p2p_p() -> Config {
        Config {
            peers: true,
            queue_us: 0,
            ..Config::cs_p()
        }
    }

    /// The other reading of VMTorrent (sections 2.2.4 and 4.5): prefetch goes on while a miss is open, and whoever is asked serves demands
    /// first.
    pub fn p2p_p_first() -> Config {
        Config {
            demand_first: true,
            quiet: false,
            ..Config::p2p_p()
        }
    }

    /// Ours: wardens, and a window that adapts.
    pub fn ours() -> Config {
        Config {
            peers: true,
            prefetch: true,
            wardens: true,
            demand_first: true,
            window_per_peer: 0.5,
            window_min: 32,
            window_max: 512,
            prefetch_max: 16,
            queue_us: 100_000,
            quiet: false,
            prefetch_per_peer_max: 4,
            duties_max: 4,
            uploads_max: 4,
            waiting_per_peer_max: 32,
            held_per_piece_max: 64,
            piece_bytes: 64 << 10,
            demand_patience_us: 250_000,
            seed_patience_us: 1_000_000,
            refused_us: 100_000,
            stall_us: 10_000_000,
            end_game_pieces: 8,
            end_game_us: 500_000,
        }
    }

    /// Returns the same for pieces of another size: as many bytes may be under way, wait, and be looked at ahead.
    #[must_use]
    pub fn of_pieces(self, piece_bytes: u64) -> Config {
        let times = self.piece_bytes as f64 / piece_bytes.max(1) as f64;
        let scaled = |pieces: usize| (pieces as f64 * times).round().max(1.0) as usize;
        Config {
            window_per_peer: self.window_per_peer * times,
            window_min: scaled(self.window_min),
            window_max: scaled(self.window_max),
            prefetch_max: scaled(self.prefetch_max),
            prefetch_per_peer_max: scaled(self.prefetch_per_peer_max),
            duties_max: scaled(self.duties_max),
            uploads_max: scaled(self.uploads_max),
            waiting_per_peer_max: scaled(self.waiting_per_peer_max),
            end_game_pieces: scaled(self.end_game_pieces),
            piece_bytes,
            ..self
        }
    }
}
