"""Links between operators: carries out what `sbon.links` decides, with connections, disks and threads."""
