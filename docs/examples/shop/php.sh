#!/bin/sh -e
# Makes this machine the shop's application: each request asks the database, by its name.
sed -i 's/^listen = .*/listen = 0.0.0.0:9000/' /etc/php/8.2/fpm/pool.d/www.conf
cat > /srv/shop.php <<'END'
<?php
$db = new mysqli("db", "app", "secret", "shop");
[$pieces] = $db->query("select sum(pieces) from sold")->fetch_row();
echo "sold $pieces pieces, says ", gethostname(), "\n";
END
php-fpm8.2
echo serves
