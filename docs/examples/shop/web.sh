#!/bin/sh -e
# Makes this machine the shop's web server. nginx looks the application's name up when it starts, so it is told to look again.
cat > /etc/nginx/sites-enabled/default <<'END'
server {
    listen 80;
    location / {
        include fastcgi_params;
        fastcgi_param SCRIPT_FILENAME /srv/shop.php;
        fastcgi_pass php:9000;
    }
}
END
mkdir -p /etc/floe/dock.d
cat > /etc/floe/dock.d/10-nginx <<'END'
#!/bin/sh
[ "$1" = joined ] || exit 0
master=$(cat /run/nginx.pid)
old=$(cat "/proc/$master/task/$master/children")
nginx -s reload
while kill -0 $old 2>/dev/null; do sleep 0.1; done
END
chmod 755 /etc/floe/dock.d/10-nginx
cp /etc/hosts /tmp/hosts; echo 127.0.0.1 php >> /etc/hosts; nginx; cp /tmp/hosts /etc/hosts
echo serves
