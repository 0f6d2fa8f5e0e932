//! The client that endpoints request handles from: IPC from the media driver of this host's memory, UDP from
//! a media driver in a process of its own.
//!
//! A host that can send a datagram reaches the code of a media driver that has UDP channels. A fault there
//! ends its process, so that process must not be the one of the SHM driver or of a user's program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::client::{DriverClient, Pending};
use super::counter::Counter;
use super::publication::{ExclusivePublication, Publication};
use super::subscription::Subscription;
use super::{AeronError, channels};

/// The connection to the media driver for UDP. There is none until the first UDP channel is requested.
#[derive(Default)]
pub struct Network {
    wanted: AtomicBool,
    client: Mutex<Option<Arc<DriverClient>>>,
}

impl Network {
    /// Whether a UDP channel was requested.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Asks for a connection.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Sets or removes the connection. Requests wait while there is none.
    pub fn set_client(&self, client: Option<Arc<DriverClient>>) {
        if let Ok(mut current) = self.client.lock() {
            *current = client;
        }
    }

    fn client(&self) -> Option<Arc<DriverClient>> {
        self.client.lock().ok().and_then(|client| client.clone())
    }

    /// A handle that is requested as soon as there is a connection, and again from the next one.
    fn request<T: 'static>(
        self: &Arc<Self>,
        add: impl Fn(&Arc<DriverClient>) -> Result<Pending<T>, AeronError> + Send + 'static,
    ) -> Pending<T> {
        self.want();
        let network = self.clone();
        let mut requested: Option<(Arc<DriverClient>, Pending<T>)> = None;
        Pending::from_poller(move || {
            requested.take_if(|(client, _)| client.is_lost());
            if requested.is_none() {
                let Some(client) = network.client() else { return Ok(None) };
                let pending = add(&client)?;
                requested = Some((client, pending));
            }
            let Some((client, pending)) = &mut requested else { return Ok(None) };
            match pending.poll() {
                // The media driver is gone, which is no fault of the channel.
                Err(_) if client.is_closed() => {
                    requested = None;
                    Ok(None)
                }
                result => result,
            }
        })
    }
}

/// Where endpoints request their handles.
pub struct Client {
    local: Arc<DriverClient>,
    network: Arc<Network>,
}

impl Client {
    pub fn new(local: Arc<DriverClient>, network: Arc<Network>) -> Self {
        Self { local, network }
    }

    /// The connection to the media driver of this host's memory.
    pub fn local(&self) -> &Arc<DriverClient> {
        &self.local
    }

    pub fn add_exclusive_publication(
        &self,
        channel: &str,
        stream_id: i32,
    ) -> Result<Pending<ExclusivePublication>, AeronError> {
        if channels::is_udp(channel) {
            let channel = channel.to_owned();
            return Ok(self.network.request(move |c| c.add_exclusive_publication(&channel, stream_id)));
        }
        self.local.add_exclusive_publication(channel, stream_id)
    }

    pub fn add_publication(&self, channel: &str, stream_id: i32) -> Result<Pending<Publication>, AeronError> {
        if channels::is_udp(channel) {
            let channel = channel.to_owned();
            return Ok(self.network.request(move |c| c.add_publication(&channel, stream_id)));
        }
        self.local.add_publication(channel, stream_id)
    }

    pub fn add_subscription(
        &self,
        channel: &str,
        stream_id: i32,
    ) -> Result<Pending<Subscription>, AeronError> {
        if channels::is_udp(channel) {
            let channel = channel.to_owned();
            return Ok(self.network.request(move |c| c.add_subscription(&channel, stream_id)));
        }
        self.local.add_subscription(channel, stream_id)
    }

    pub fn add_counter(&self, type_id: i32, label: &str) -> Result<Pending<Counter>, AeronError> {
        self.local.add_counter(type_id, label)
    }
}
