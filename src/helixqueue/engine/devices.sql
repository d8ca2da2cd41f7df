-- Devices of hosts.

-- name: devices
-- Devices that workers described, and what holds them.
select host, device, place, model, vram_gb, cc, fault, seen_at, held, worker, public_id, queue, identity, since, ended_at
from helix.read_devices_v1(%(tenant)s::text);

-- name: withdraw
-- Withdraws a device from use; without a reason, returns it.
select helix.withdraw_device_v1(%s::text, %s::text, %s::text);
