// The page's entry: theme first, then the application.
import { mount } from 'svelte';
import App from './App.svelte';
import './app.css';
import { loadPage } from './lib/pages';
import { applyTheme } from './lib/settings.svelte';

applyTheme();
// The page's scripts are asked for before the frame is drawn.
void loadPage(location.pathname)?.catch(() => {});
const target = document.getElementById('app');
if (target) mount(App, { target });
